// The browser's GPU: its name, and whether it is hardware.

async function info() {
  try {
    return (await navigator.gpu?.requestAdapter())?.info;
  } catch {
    return undefined;
  }
}

/** Vendor and architecture, for instance "nvidia ampere"; browsers reveal no more. */
export async function adapterName() {
  const { vendor, architecture } = (await info()) ?? {};
  return [vendor, architecture].filter(Boolean).join(" ") || "a GPU";
}

let hardware;

/** Whether there is a hardware GPU: a software adapter is slower than training on the CPU. The browser is asked once. */
export const hasGpu = () => (hardware ??= info().then((found) => Boolean(found) && !found.isFallbackAdapter));
