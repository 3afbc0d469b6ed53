import { readdirSync } from "node:fs";
import { join } from "node:path";

/** Names of the RDMA devices that the kernel shows, without opening any; sorted. */
export function kernelRdmaDevices(root = "/"): string[] {
  try {
    return readdirSync(join(root, "sys/class/infiniband")).sort();
  } catch (thrown) {
    if (thrown instanceof Error && "code" in thrown) return [];
    throw thrown;
  }
}
