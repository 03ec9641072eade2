// The browser's GPU: its name, as far as the browser tells, and whether it is one.

async function info() {
  try {
    return (await navigator.gpu?.requestAdapter())?.info;
  } catch {
    return undefined;
  }
}

/** The maker and the make, for instance "nvidia ampere"; browsers keep more to themselves. */
export async function adapterName() {
  const { vendor, architecture } = (await info()) ?? {};
  return [vendor, architecture].filter(Boolean).join(" ") || "a GPU";
}

/** Whether there is a real GPU: one that is software is slower than the training module on the CPU. */
export async function hasGpu() {
  const found = await info();
  return Boolean(found) && !found.isFallbackAdapter;
}
