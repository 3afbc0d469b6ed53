import { appendFileSync, copyFileSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Archive } from "./initrd.ts";
import type { Bed } from "./packages.ts";

/** A network between two guests: what one side sends, the other's socket gets. */
export interface Wire {
  readonly name: string;
  readonly own: string;
  readonly theirs: string;
  readonly mac: string;
}

export interface MachineOptions {
  readonly bed: Bed;
  readonly name: string;
  /** Shared with the guest, which finds its job there and leaves its reports. */
  readonly folder: string;
  /** Text for a shell in the guest (`guest/init.sh` has its helpers). */
  readonly job: string;
  readonly cpus: number;
  readonly memoryMib: number;
  /** `bed.KEY=VALUE` on the kernel's command line. */
  readonly settings: Readonly<Record<string, string>>;
  readonly wires: readonly Wire[];
  /** The guest is ended after so long, whatever it does. */
  readonly limitMs: number;
  /** Called with each line that begins with `bed: `, without that. */
  onLine?(line: string): void;
}

/** How a guest ended: what its job returned, or why there is nothing from it. */
export type Ending =
  | { readonly kind: "done"; readonly code: number }
  | { readonly kind: "stopped" | "killed" | "late" };

/** Guests that run now: none outlives this process. */
const running = new Set<Machine>();
process.on("exit", () => {
  for (const machine of running) machine.kill();
});

const HOST_TREE = "security_model=none,readonly=on,multidevs=remap";
/** The path MTU of RDMA is 4096, its headers come on top. */
const WIRE_MTU = 4_400;

/**
 * The processor is emulated wherever the host's has no virtualisation of its own: with /dev/kvm but
 * without these flags a kernel hangs before its first line.
 */
function acceleration(): string[] {
  const hasVirtualisation = /\b(?:vmx|svm)\b/.test(readFileSync("/proc/cpuinfo", "utf8"));
  return [...(hasVirtualisation ? ["-accel", "kvm"] : []), "-accel", "tcg,thread=multi"];
}

function initrdOf({ bed }: MachineOptions, file: string): void {
  const modules = new Set(bed.modules);
  const wanted = (path: string) => {
    if (path.startsWith("lib/modules/")) return modules.has(path);
    if (path.startsWith("etc/")) return path.endsWith("/rxe.driver");
    if (/\/gconv\/|^var\//.test(path)) return false;
    return !path.includes("/libibverbs/") || path.includes("/librxe-");
  };
  new Archive()
    .console()
    .file("init", readFileSync(join(import.meta.dir, "guest/init.sh")))
    .file("modules", bed.modules.map((path) => `${path}\n`).join(""))
    .tree(bed.root, wanted)
    .write(file);
}

function networkArguments(wires: readonly Wire[]): string[] {
  return wires.flatMap(({ name, own, theirs, mac }) => {
    const local = `local.type=unix,local.path=${own}`;
    const remote = `remote.type=unix,remote.path=${theirs}`;
    const card = `netdev=${name},mac=${mac},host_mtu=${WIRE_MTU},romfile=`;
    return ["-netdev", `dgram,id=${name},${local},${remote}`, "-device", `virtio-net-pci,${card}`];
  });
}

function qemuArguments(options: MachineOptions, initrd: string): string[] {
  const { bed, name, folder, cpus, memoryMib, settings, wires } = options;
  const words = Object.entries(settings).map(([key, value]) => `bed.${key}=${value}`);
  const line = ["console=ttyS0 quiet panic=-1 mitigations=off nokaslr", ...words];
  return [
    ...["qemu-system-x86_64", "-name", name, ...acceleration(), "-cpu", "max"],
    ...["-smp", String(cpus), "-m", String(memoryMib), "-nodefaults", "-no-reboot"],
    ...["-display", "none", "-serial", "stdio"],
    ...["-kernel", bed.elf, "-initrd", initrd, "-append", line.join(" ")],
    ...["-virtfs", `local,path=/,mount_tag=host,${HOST_TREE}`],
    ...["-virtfs", `local,path=${folder},mount_tag=out,security_model=none`],
    ...networkArguments(wires),
  ];
}

/** A guest in QEMU, from its start to its end. */
export class Machine implements AsyncDisposable {
  readonly name: string;
  /** Everything that it says. */
  readonly console: string;
  readonly ended: Promise<Ending>;
  readonly #process;
  readonly #lines: string[] = [];
  readonly #waiting = new Set<() => void>();
  #ending: Ending | null = null;
  #why: "killed" | "late" | null = null;

  constructor(options: MachineOptions) {
    const { name, folder, job } = options;
    this.name = name;
    this.console = join(folder, `${name}.console`);
    writeFileSync(this.console, "");
    writeFileSync(join(folder, `${name}.job`), job);
    copyFileSync(join(import.meta.dir, "guest/enter.sh"), join(folder, "enter.sh"));
    const initrd = join(folder, `${name}.initrd`);
    initrdOf(options, initrd);
    const settings = { ...options.settings, job: `${name}.job` };
    this.#process = Bun.spawn(qemuArguments({ ...options, settings }, initrd), {
      stdin: "ignore",
      stdout: "pipe",
      stderr: "pipe",
    });
    running.add(this);
    const late = setTimeout(() => this.#end("late"), options.limitMs);
    const streams = [this.#process.stdout, this.#process.stderr].map((stream) =>
      this.#read(stream, options.onLine),
    );
    this.ended = Promise.all([this.#process.exited, ...streams]).then(() => {
      clearTimeout(late);
      running.delete(this);
      this.#ending = this.#endingOf();
      for (const wake of this.#waiting) wake();
      return this.#ending;
    });
  }

  async #read(stream: ReadableStream<Uint8Array>, onLine?: (line: string) => void): Promise<void> {
    let rest = "";
    const decoder = new TextDecoder();
    for await (const bytes of stream) {
      const text = decoder.decode(bytes, { stream: true });
      appendFileSync(this.console, text);
      const lines = (rest + text).split(/\r*\n/);
      rest = lines.pop()!;
      for (const line of lines) {
        if (!line.startsWith("bed: ")) continue;
        const words = line.slice("bed: ".length).trimEnd();
        this.#lines.push(words);
        onLine?.(words);
      }
      for (const wake of this.#waiting) wake();
    }
  }

  #endingOf(): Ending {
    const done = this.#lines.map((line) => /^done (\d+)$/.exec(line)).find((found) => found);
    if (done) return { kind: "done", code: Number(done[1]) };
    return { kind: this.#why ?? "stopped" };
  }

  /** Waits for a line that begins so; null when the guest ends before. */
  async line(begin: string): Promise<string | null> {
    for (;;) {
      const found = this.#lines.find((line) => line.startsWith(begin));
      if (found !== undefined) return found;
      if (this.#ending !== null) return null;
      await new Promise<void>((resolve) => {
        const wake = () => {
          this.#waiting.delete(wake);
          resolve();
        };
        this.#waiting.add(wake);
      });
    }
  }

  /** The last lines of its console, for somebody who wonders. */
  tail(lines: number): string[] {
    const text = readFileSync(this.console, "utf8").replaceAll("\r", "").trimEnd();
    return text.split("\n").slice(-lines);
  }

  #end(why: "killed" | "late"): void {
    this.#why ??= why;
    this.#process.kill("SIGKILL");
  }

  /** As if its power were cut. */
  kill(): void {
    this.#end("killed");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.kill();
    await this.ended;
  }
}
