import type { HostFiles } from "./host-files.ts";
import { absent, type Check, ok, warn } from "./report.ts";

const LIBRARY_FOLDERS = [
  "/usr/lib/x86_64-linux-gnu",
  "/usr/lib/aarch64-linux-gnu",
  "/usr/lib64",
  "/usr/lib",
  "/usr/local/cuda/compat",
  "/usr/local/nvidia/lib64",
];

/** Whether the dynamic linker can find a library: in its cache or in a folder of its own. */
function hasLibrary(files: HostFiles, name: string): boolean {
  if (files.text("/etc/ld.so.cache")?.includes(`${name}\0`) === true) return true;
  return LIBRARY_FOLDERS.some((folder) => files.stat(`${folder}/${name}`) !== null);
}

export function checkCuda(files: HostFiles): Check {
  const gpus = files.list("/dev").filter((name) => /^nvidia[0-9]+$/.test(name));
  const hasDriver = hasLibrary(files, "libcuda.so.1");
  const version = /Kernel Module\D*([0-9][0-9.]*)/.exec(
    files.text("/proc/driver/nvidia/version") ?? "",
  )?.[1];
  const driver = version === undefined ? "" : `, driver ${version}`;
  if (gpus.length > 0 && hasDriver) {
    return ok("CUDA", `${gpus.length} GPU${gpus.length === 1 ? "" : "s"}${driver}`);
  }
  if (gpus.length > 0) {
    return warn(
      "CUDA",
      `${gpus.length} GPU devices${driver}, but libcuda.so.1 is not found`,
      "install the driver's user library, or add the NVIDIA container runtime's `utility,compute`",
    );
  }
  if (hasDriver) {
    return warn(
      "CUDA",
      "libcuda.so.1 is there, but no /dev/nvidia*",
      "load the kernel module (nvidia-smi), or hand the devices to the container (--gpus all)",
    );
  }
  return absent("CUDA", "no NVIDIA GPU and no driver; the RAM tier works without");
}

interface Port {
  readonly name: string;
  readonly isActive: boolean;
  readonly words: string;
}

function portsOf(files: HostFiles, device: string): Port[] {
  const folder = `/sys/class/infiniband/${device}/ports`;
  return files.list(folder).map((port) => {
    const read = (file: string) => files.text(`${folder}/${port}/${file}`)?.trim() ?? "unknown";
    const state = read("state").replace(/^[0-9]+: /, "");
    return {
      name: `${device}/${port}`,
      isActive: state === "ACTIVE",
      words: `${device}/${port} ${state} ${read("link_layer")} ${read("rate")}`,
    };
  });
}

export function checkRdma(files: HostFiles): Check {
  const devices = files.list("/sys/class/infiniband");
  if (devices.length === 0) return absent("RDMA", "no device");
  const ports = devices.flatMap((device) => portsOf(files, device));
  const found = ports.map(({ words }) => words).join("; ") || devices.join(" ");
  if (!ports.some(({ isActive }) => isActive)) {
    return warn("RDMA", found, "bring a port up: cable, switch port, ip link set DEVICE up");
  }
  if (!files.list("/dev/infiniband").some((name) => name.startsWith("uverbs"))) {
    return warn(
      "RDMA",
      `${found}; no /dev/infiniband/uverbs*`,
      "modprobe ib_uverbs, or pass it in",
    );
  }
  if (!hasLibrary(files, "libibverbs.so.1")) {
    return warn(
      "RDMA",
      `${found}; libibverbs.so.1 is not found`,
      "install libibverbs1 (rdma-core)",
    );
  }
  return ok("RDMA", found);
}
