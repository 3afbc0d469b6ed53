import { existsSync, readdirSync, readFileSync } from "node:fs";
import { basename, join, relative } from "node:path";
import { run } from "../../scripts/lib/run.ts";

/**
 * Modules of a guest; what they depend on is found in the modules themselves. Without
 * `crc32_pclmul`: emulated, its instructions are slower than the table of `crc32_generic`.
 */
export const MODULES = [
  ..."virtio_pci virtio_net 9pnet_virtio 9p dummy sch_netem".split(" "),
  ..."crc32_generic ib_uverbs rdma_rxe".split(" "),
];

/** Of the header that precedes a compressed kernel (Linux, Documentation/arch/x86/boot.rst). */
const SETUP_SECTORS = 0x1f1;
const PAYLOAD_OFFSET = 0x248;
const PAYLOAD_LENGTH = 0x24c;
const SECTOR = 512;
/** Behind the payload stands how long it is when it is unpacked. */
const TRAILER = 4;

const XZ = [0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00];
const ZSTD = [0x28, 0xb5, 0x2f, 0xfd];

async function unxz(bytes: Uint8Array): Promise<Uint8Array> {
  const xz = Bun.spawn(["xz", "-dc"], { stdin: bytes, stdout: "pipe", stderr: "inherit" });
  const made = await new Response(xz.stdout).bytes();
  if ((await xz.exited) !== 0) throw new Error("xz cannot unpack the kernel");
  return made;
}

/** The kernel inside a bzImage, ready to be entered by QEMU without the decompressor. */
export async function kernelElf(image: Uint8Array): Promise<Uint8Array> {
  const header = new DataView(image.buffer, image.byteOffset, image.length);
  const start = (header.getUint8(SETUP_SECTORS) + 1) * SECTOR;
  const from = start + header.getUint32(PAYLOAD_OFFSET, true);
  const payload = image.subarray(from, from + header.getUint32(PAYLOAD_LENGTH, true) - TRAILER);
  const begins = (magic: readonly number[]) => magic.every((byte, at) => payload[at] === byte);
  let elf: Uint8Array;
  if (begins(XZ)) elf = await unxz(payload);
  else if (begins(ZSTD)) elf = await Bun.zstdDecompress(payload);
  else throw new Error("the kernel is packed neither by xz nor by zstd");
  if (elf[0] !== 0x7f || elf[1] !== 0x45) throw new Error("there is no ELF file in the kernel");
  return elf;
}

/** Underscores and hyphens are the same in names of modules. */
function moduleName(file: string): string {
  return basename(file)
    .replace(/\.ko(?:\.xz)?$/, "")
    .replaceAll("-", "_");
}

function dependsOf(file: string): string[] {
  const text = readFileSync(file).toString("latin1");
  const names = /\0depends=([^\0]*)\0/.exec(text)?.[1] ?? "";
  return names.split(",").filter((name) => name !== "");
}

/** Unpacks the modules below `root` that guests need; their paths in the order of loading. */
export async function orderedModules(root: string, kernel: string): Promise<string[]> {
  const folder = join(root, "lib/modules", kernel);
  const all = readdirSync(folder, { recursive: true, encoding: "utf8" });
  const files = new Map(
    all.filter((path) => /\.ko(\.xz)?$/.test(path)).map((path) => [moduleName(path), path]),
  );
  const builtin = readFileSync(join(folder, "modules.builtin"), "utf8").split("\n");
  const isBuiltin = new Set(builtin.map(moduleName));
  const ordered: string[] = [];
  const seen = new Set<string>();
  const add = async (name: string): Promise<void> => {
    if (seen.has(name)) return;
    seen.add(name);
    const path = files.get(name);
    if (path === undefined) {
      if (isBuiltin.has(name)) return;
      throw new Error(`kernel ${kernel} has no module ${name}`);
    }
    let file = join(folder, path);
    if (file.endsWith(".xz")) {
      const { ok, output } = await run(["xz", "-dk", file]);
      if (!ok) throw new Error(`xz cannot unpack ${path}: ${output}`);
      file = file.slice(0, -".xz".length);
    }
    if (!existsSync(file)) throw new Error(`${file} is missing`);
    for (const needed of dependsOf(file)) await add(needed.replaceAll("-", "_"));
    ordered.push(relative(root, file));
  };
  for (const name of MODULES) await add(name);
  return ordered;
}
