import { createHash } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { TOOLCHAIN_DIR } from "../../scripts/lib/paths.ts";
import { run, seconds } from "../../scripts/lib/run.ts";
import { kernelElf, MODULES, orderedModules } from "./kernel.ts";

/** Kernels of Debian 12: its own, and the one from its backports. */
export const KERNELS = { "6.1": "bookworm", "6.12": "bookworm-backports" } as const;

export type KernelName = keyof typeof KERNELS;

/** What guests boot from. */
export interface Bed {
  /** As the kernel calls itself. */
  readonly kernel: string;
  /** The kernel as an ELF file, which boots faster than the compressed image. */
  readonly elf: string;
  /** Programs and libraries of the guest, and its modules. */
  readonly root: string;
  /** Paths below `root`, in the order in which they are loaded. */
  readonly modules: readonly string[];
}

/** Beside the kernel: what `ip`, `tc`, `rdma` and the verbs' programs need, and nothing more. */
const PACKAGES = [
  ..."busybox-static libc6 libgcc-s1 zlib1g iproute2 libmnl0 libbsd0 libmd0 libcap2".split(" "),
  ..."libelf1 libbpf1 libxtables12 libdb5.3 libibverbs1 ibverbs-providers".split(" "),
  ..."ibverbs-utils libnl-3-200 libnl-route-3-200".split(" "),
];

/** Of the kernel's package, which unpacks to 0.4 GB, only these folders and files. */
const KERNEL_PARTS = [
  "./boot/vmlinuz-*",
  "./lib/modules/*/modules.builtin",
  ...["arch/x86/crypto", "crypto", "lib", "drivers/net", "drivers/virtio"].map(
    (folder) => `./lib/modules/*/kernel/${folder}/*.ko*`,
  ),
  ...["drivers/infiniband/core", "drivers/infiniband/sw/rxe", "net/9p", "net/core"].map(
    (folder) => `./lib/modules/*/kernel/${folder}/*.ko*`,
  ),
  ...["net/sched", "net/ipv4", "net/ipv6", "fs/9p", "fs/netfs", "fs/fscache"].map(
    (folder) => `./lib/modules/*/kernel/${folder}/*.ko*`,
  ),
];

const KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg";
const MIRROR = "http://deb.debian.org";
const SUITES = [
  ["debian", "bookworm"],
  ["debian", "bookworm-backports"],
  ["debian-security", "bookworm-security"],
];

/** Whatever a bed is made from: another list makes another bed. */
const RECIPE = createHash("sha256")
  .update(JSON.stringify([1, PACKAGES, KERNEL_PARTS, MODULES, SUITES]))
  .digest("hex");

/** The programs that make and run a bed, by the package that brings them. */
const TOOLS: Readonly<Record<string, string>> = {
  "qemu-system-x86_64": "qemu-system-x86",
  "apt-get": "apt",
  "dpkg-deb": "dpkg",
  tar: "tar",
  xz: "xz-utils",
};

/** Why guests cannot run here, or null. */
export function bedRefusal(): string | null {
  if (process.platform !== "linux" || process.arch !== "x64") {
    return `guests are of linux-x64, this is ${process.platform}-${process.arch}`;
  }
  const missing = Object.keys(TOOLS).filter((tool) => Bun.which(tool) === null);
  if (missing.length > 0) {
    const packages = missing.map((tool) => TOOLS[tool]).join(" ");
    return `no ${missing.join(", ")} (\`apt-get install --no-install-recommends ${packages}\`)`;
  }
  if (!existsSync(KEYRING)) return `no ${KEYRING} (\`apt-get install debian-archive-keyring\`)`;
  return null;
}

async function must(command: string[], cwd: string): Promise<string> {
  const { ok, code, output } = await run(command, { cwd });
  if (!ok) throw new Error(`${command[0]} ended with ${code}:\n${output.slice(-2_000)}`);
  return output;
}

/**
 * apt with lists and sources of its own: it needs no root, changes nothing of the host's, and gives
 * the same packages on every release of Debian and on those made from it.
 */
class Apt {
  readonly #folder: string;
  readonly #options: readonly string[];

  constructor(folder: string) {
    this.#folder = folder;
    const at = (name: string) => join(folder, name);
    mkdirSync(at("lists/partial"), { recursive: true });
    mkdirSync(at("cache/archives/partial"), { recursive: true });
    writeFileSync(at("status"), "");
    const source = ([archive, suite]: string[]) =>
      `deb [arch=amd64 signed-by=${KEYRING}] ${MIRROR}/${archive} ${suite} main\n`;
    writeFileSync(at("sources.list"), SUITES.map(source).join(""));
    const options = {
      ...{ "Dir::State": folder, "Dir::State::status": at("status"), "Dir::Cache": at("cache") },
      ...{ "Dir::Etc::sourcelist": at("sources.list"), "Dir::Etc::sourceparts": "/dev/null" },
      ...{ "APT::Architecture": "amd64", "APT::Sandbox::User": "", "Acquire::Languages": "none" },
      ...{ "Acquire::Retries": "3", "APT::Update::Error-Mode": "any" },
      "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
    };
    this.#options = Object.entries(options).flatMap(([key, value]) => ["-o", `${key}=${value}`]);
  }

  #run(program: string, ...words: readonly string[]): Promise<string> {
    return must([program, ...this.#options, ...words], this.#folder);
  }

  /** The package of the newest kernel of a suite: older ones leave the archive. */
  async kernelPackage(suite: string): Promise<string> {
    await this.#run("apt-get", "update");
    const words = await this.#run("apt-cache", "-t", suite, "depends", "linux-image-amd64");
    const name = /Depends: (linux-image-\S+)/.exec(words)?.[1];
    if (name === undefined) throw new Error(`apt knows no kernel in ${suite}:\n${words}`);
    return name;
  }

  /** Paths of the files. */
  async download(names: readonly string[]): Promise<string[]> {
    await this.#run("apt-get", "download", ...names);
    const files = readdirSync(this.#folder).filter((name) => name.endsWith(".deb"));
    return files.map((name) => join(this.#folder, name));
  }
}

function unpack(file: string, into: string, parts: readonly string[]): Promise<string> {
  const limit = parts.length === 0 ? [] : ["--wildcards", "--no-wildcards-match-slash", ...parts];
  const tar = ["tar", "-x", "--no-same-owner", "-C", into, ...limit];
  const words = tar.map((word) => `'${word}'`).join(" ");
  // A folder that only the other kernel has is not in this one's package: tar says so and fails.
  const end = parts.length === 0 ? "" : " 2>/dev/null || true";
  return must(["sh", "-c", `dpkg-deb --fsys-tarfile '${file}' | ${words}${end}`], into);
}

async function make(stage: string, kernel: KernelName): Promise<Omit<Bed, "root" | "elf">> {
  const apt = new Apt(join(stage, "apt"));
  const root = join(stage, "root");
  mkdirSync(root);
  const kernelPackage = await apt.kernelPackage(KERNELS[kernel]);
  for (const file of await apt.download([kernelPackage, ...PACKAGES])) {
    await unpack(file, root, file.includes("/linux-image-") ? KERNEL_PARTS : []);
  }
  const name = kernelPackage.slice("linux-image-".length);
  const image = join(root, "boot", `vmlinuz-${name}`);
  writeFileSync(join(stage, "vmlinux"), await kernelElf(readFileSync(image)));
  const modules = await orderedModules(root, name);
  for (const folder of ["boot", "usr/share", "apt"]) {
    rmSync(join(folder === "apt" ? stage : root, folder), { recursive: true, force: true });
  }
  return { kernel: name, modules };
}

/** The bed with this kernel, from the cache where it lies there already. */
export async function prepareBed(
  kernel: KernelName,
  fresh: boolean,
  say: (text: string) => void,
): Promise<Bed> {
  const folder = join(TOOLCHAIN_DIR, "rdma-bed", kernel);
  const made = join(folder, "bed.json");
  const places = { root: join(folder, "root"), elf: join(folder, "vmlinux") };
  if (!fresh && existsSync(made)) {
    const { recipe, ...bed } = JSON.parse(readFileSync(made, "utf8"));
    if (recipe === RECIPE) return { ...bed, ...places };
  }
  const startMs = performance.now();
  const stage = `${folder}.${process.pid}`;
  const clear = () => rmSync(stage, { recursive: true, force: true });
  // Also where somebody interrupts it.
  process.once("exit", clear);
  clear();
  mkdirSync(stage, { recursive: true });
  try {
    const bed = await make(stage, kernel);
    writeFileSync(join(stage, "bed.json"), JSON.stringify({ ...bed, recipe: RECIPE }));
    rmSync(folder, { recursive: true, force: true });
    renameSync(stage, folder);
    say(`kernel ${bed.kernel} and its packages in ${seconds(performance.now() - startMs)}`);
    return { ...bed, ...places };
  } finally {
    clear();
  }
}
