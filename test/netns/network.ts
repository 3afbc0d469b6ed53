import { existsSync } from "node:fs";
import { join } from "node:path";

/** How packets fare in one direction; what is not named is as it should be. */
export interface PathRule {
  /** Share of packets that are lost. */
  readonly loss?: number;
  readonly delayMs?: number;
  readonly cut?: boolean;
}

/** Packets since the start. */
export interface Traffic {
  readonly passed: number;
  readonly lost: number;
  readonly cut: number;
  /** To nobody of this network. */
  readonly unwanted: number;
}

const SWITCH = join(import.meta.dir, "switch.py");
/** Packets that wait for the switch; a real one drops earlier, but is faster, too. */
const QUEUE_PACKETS = 10_000;

/** Null: this host can; else why not. */
export function netnsRefusal(): string | null {
  if (process.getuid?.() !== 0) return "it takes root to make network namespaces";
  if (Bun.which("ip") === null) return "the command `ip` (iproute2) is not installed";
  if (Bun.which("python3") === null) return "python3, which carries the packets, is not installed";
  if (!existsSync("/dev/net/tun")) return "there is no /dev/net/tun";
  const probe = `hearth-probe-${process.pid}`;
  const made = Bun.spawnSync(["ip", "netns", "add", probe]);
  if (made.exitCode !== 0) return `no namespace can be made: ${made.stderr}`.trim();
  Bun.spawnSync(["ip", "netns", "del", probe]);
  return null;
}

function ip(...words: string[]): void {
  const { exitCode, stderr } = Bun.spawnSync(["ip", ...words]);
  if (exitCode !== 0) throw new Error(`ip ${words.join(" ")}: ${stderr}`);
}

/**
 * Hosts in network namespaces of their own, and this process's as the last of them. What they send
 * to each other passes through a switch in user space, which needs nothing of the kernel but tun
 * devices, and treats TCP and UDP alike.
 */
export class Network implements AsyncDisposable {
  readonly hosts: number;
  readonly #prefix: string;
  readonly #child: Bun.Subprocess<"pipe", "pipe", "inherit">;
  readonly #answers: AsyncIterator<string>;
  /** One question after the other. */
  #last: Promise<unknown> = Promise.resolve();

  private constructor(hosts: number) {
    this.hosts = hosts;
    this.#prefix = `hn${process.pid}-`;
    this.#child = Bun.spawn(["python3", SWITCH, this.#prefix, String(hosts + 1)], {
      stdin: "pipe",
      stdout: "pipe",
      stderr: "inherit",
    });
    this.#answers = linesOf(this.#child.stdout);
  }

  static async make(hosts: number): Promise<Network> {
    const network = new Network(hosts);
    try {
      await network.#answers.next();
      for (let host = 0; host < hosts; host++) network.#place(host);
      network.#address(hosts, []);
      return network;
    } catch (error) {
      await network[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** Words that run a command where a host is. */
  within(host: number): string[] {
    return ["ip", "netns", "exec", this.#namespace(host)];
  }

  address(host: number): string {
    return `198.18.0.${host + 1}`;
  }

  async path(from: number, to: number, rule: PathRule): Promise<void> {
    const { loss = 0, delayMs = 0, cut = false } = rule;
    await this.#ask({ from, to, loss, delay_ms: delayMs, cut });
  }

  /** Between all hosts, in both directions; this process's own path stays good. */
  async everywhere(rule: PathRule): Promise<void> {
    for (let from = 0; from < this.hosts; from++) {
      for (let to = 0; to < this.hosts; to++) if (from !== to) await this.path(from, to, rule);
    }
  }

  traffic(): Promise<Traffic> {
    return this.#ask({});
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#child.stdin.end();
    await this.#child.exited;
    this.remove();
  }

  /** Namespaces outlive whoever made them; their devices do not outlive the switch. */
  remove(): void {
    for (let host = 0; host < this.hosts; host++) {
      Bun.spawnSync(["ip", "netns", "del", this.#namespace(host)], { stderr: "ignore" });
    }
  }

  #namespace(host: number): string {
    return `hearth-${process.pid}-${host}`;
  }

  #place(host: number): void {
    const namespace = this.#namespace(host);
    ip("netns", "add", namespace);
    ip("link", "set", `${this.#prefix}${host}`, "netns", namespace);
    const inside = ["-n", namespace];
    ip(...inside, "link", "set", "lo", "up");
    this.#address(host, inside);
  }

  #address(host: number, inside: readonly string[]): void {
    const device = `${this.#prefix}${host}`;
    ip(...inside, "addr", "add", `${this.address(host)}/24`, "dev", device);
    ip(...inside, "link", "set", device, "txqueuelen", String(QUEUE_PACKETS), "up");
  }

  #ask(rule: object): Promise<Traffic> {
    const answer = this.#last.then(async () => {
      this.#child.stdin.write(`${JSON.stringify(rule)}\n`);
      await this.#child.stdin.flush();
      const { value, done } = await this.#answers.next();
      if (done) throw new Error("the switch is gone");
      return JSON.parse(value) as Traffic;
    });
    this.#last = answer.catch(() => undefined);
    return answer;
  }
}

async function* linesOf(stream: ReadableStream<Uint8Array<ArrayBuffer>>): AsyncGenerator<string> {
  let rest = "";
  for await (const chunk of stream.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + chunk).split("\n");
    rest = lines.pop()!;
    yield* lines;
  }
}
