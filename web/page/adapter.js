// The browser's GPU: its name, and whether it is hardware.

/** The timeout of a GPU in milliseconds. */
export const GPU_TIMEOUT_MS = 5_000;

async function findAdapter() {
  const timeout = new Promise((done) => setTimeout(done, GPU_TIMEOUT_MS));
  try {
    return await Promise.race([navigator.gpu?.requestAdapter(), timeout]);
  } catch {
    return undefined;
  }
}

/** Vendor and architecture, for instance "nvidia ampere"; browsers reveal no more. */
export async function adapterName() {
  const { vendor, architecture } = (await findAdapter())?.info ?? {};
  return [vendor, architecture].filter(Boolean).join(" ") || "a GPU";
}

let gpuSearch;

/** Whether there is a hardware GPU: a software adapter is slower than training on the CPU. The browser is asked once;
    older ones say it of the adapter itself. */
export const hasGpu = () => (gpuSearch ??= findAdapter().then((adapter) => Boolean(adapter) && !(adapter.info?.isFallbackAdapter ?? adapter.isFallbackAdapter)));

/** Whether the browser offers an adapter, be it software. */
export const hasAdapter = async () => Boolean(await findAdapter());
