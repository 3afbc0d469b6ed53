import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Receipt } from "../../src/control/index.ts";
import { EngineClient } from "../../src/engine/index.ts";
import { encodeManifest, manifestOf } from "../../src/identity/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { CrashAgent } from "../crash/agent.ts";
import { Engine } from "../engine/engine.ts";
import { waitFor } from "../support/wait.ts";

export const BLOCK_BYTES = 16 * 1024;
/** Room for all that is stored, many times over: nothing leaves RAM unless a command says so. */
const RAM = 32 * 2 ** 20;
const SSD = 64 * 2 ** 20;
const PATIENCE_MS = 60_000;
const PAGE = 1_000;

const MANIFEST = encodeManifest(
  manifestOf({ model: "chaos", dtype: "bfloat16", layout: "chaos:flat", blockTokens: 64 }),
);

export interface HostOptions {
  readonly executable: string;
  readonly folder: string;
  readonly worker: string;
  readonly nats: Readonly<Record<string, string | number | boolean>>;
}

export interface HeldPin {
  readonly id: number;
  readonly owner: string;
  readonly name: string | null;
  readonly blocks: number;
  readonly priority: number | null;
  readonly remaining_seconds: number | null;
}

/** A block by its name, and by the 64-bit hash that its engine calls it by. */
export interface NamedBlock {
  readonly name: string;
  readonly hash: number;
}

/** An agent with RAM and SSD that takes commands from a broker. */
export class Host implements AsyncDisposable {
  readonly #options: HostOptions;
  #agent: CrashAgent | null = null;
  #engine: Engine | null = null;

  private constructor(options: HostOptions) {
    this.#options = options;
  }

  static async start(options: HostOptions): Promise<Host> {
    const host = new Host(options);
    writeFileSync(join(options.folder, "hearth.toml"), configOf(options));
    await host.start();
    return host;
  }

  get worker(): string {
    return this.#options.worker;
  }

  get socketPath(): string {
    return join(this.#options.folder, "e.sock");
  }

  /** The audit log with its rotated files, oldest first. */
  async readAudit(): Promise<string> {
    const path = join(this.#options.folder, "audit.jsonl");
    const files = [5, 4, 3, 2, 1].map((n) => `${path}.${n}`).filter((file) => existsSync(file));
    const texts = await Promise.all([...files, path].map((file) => Bun.file(file).text()));
    return texts.join("");
  }

  /** How it ended; null while it runs. */
  ended: string | null = null;

  async start(): Promise<void> {
    const { executable, folder } = this.#options;
    const configPath = join(folder, "hearth.toml");
    const agent = new CrashAgent({ executable, configPath, folder, plan: "" });
    this.#agent = agent;
    this.ended = null;
    void agent.ended.then(({ code, signal }) => {
      if (this.#agent === agent) this.ended = `ended with ${signal ?? code}: ${agent.lastLines}`;
    });
    if ((await agent.ready) === null) throw new Error(agent.lastLines.join("\n"));
    const isGrown = async () => {
      type Status = { arena: { bytes: number; ready_bytes: number } };
      const { arena } = await this.get<Status>("/v1/status");
      return arena.bytes === arena.ready_bytes;
    };
    await waitFor(isGrown, PATIENCE_MS, "the arena");
    this.#engine = new Engine(await connectEngine(this.socketPath, "chaos"));
  }

  async stop(by: "SIGTERM" | "SIGKILL"): Promise<void> {
    await this.#engine?.[Symbol.asyncDispose]();
    this.#engine = null;
    const agent = this.#agent;
    this.#agent = null;
    if (by === "SIGKILL") agent?.kill();
    else agent?.stop();
    await agent?.ended;
  }

  async get<T>(path: string): Promise<T> {
    const response = await fetch(this.#agent!.url + path, { keepalive: false });
    return (await response.json()) as T;
  }

  /** A command over HTTP. */
  async command(body: object): Promise<Receipt> {
    const headers = { "content-type": "application/json" };
    const options = { method: "POST", headers, body: JSON.stringify(body) };
    const response = await fetch(`${this.#agent!.url}/v1/commands`, options);
    return (await response.json()) as Receipt;
  }

  async metrics(): Promise<Metrics> {
    const response = await fetch(`${this.#agent!.url}/metrics`, { keepalive: false });
    return new Metrics(await response.text());
  }

  /** Stores blocks, and waits until there is room. */
  async store(...blocks: readonly NamedBlock[]): Promise<void> {
    const isStored = async () => {
      const specs = blocks.map(({ name, hash }) => ({
        ...{ name, bytes: BLOCK_BYTES, alias: BigInt(hash) },
      }));
      const outcomes = await this.#engine!.put(...specs);
      return outcomes.every((outcome) => outcome === "ok" || outcome === "present");
    };
    await waitFor(isStored, PATIENCE_MS, "room for blocks");
  }

  /** Whether each byte is as it was stored, wherever the block is; null where it is nowhere. */
  async reads(name: string): Promise<boolean | null> {
    const [read] = await this.#engine!.get(name);
    return read === "ok" ? true : read === "wrong bytes" ? false : null;
  }

  /** All pins, soft pins or leases there are. */
  async holds(kind: "pin" | "retain" | "lease"): Promise<HeldPin[]> {
    const found: HeldPin[] = [];
    type Page = { pins?: HeldPin[]; leases?: HeldPin[]; next: number | null };
    const path = kind === "lease" ? "/v1/leases?" : `/v1/pins?kind=${kind}&`;
    for (let after: number | null = 0; after !== null; ) {
      const page: Page = await this.get<Page>(`${path}limit=${PAGE}&after=${after}`);
      found.push(...(page.pins ?? page.leases ?? []));
      after = page.next;
    }
    return found;
  }

  /** Null where the block is not known. */
  async isTransient(hash: number): Promise<boolean | null> {
    type Page = { blocks?: { transient: boolean; tiers: string[] }[] };
    const page = await this.get<Page>(`/v1/tree?root=${hash}&depth=0`);
    return page.blocks?.[0]?.transient ?? null;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop("SIGKILL");
  }
}

export function connectEngine(socketPath: string, name: string): Promise<EngineClient> {
  return EngineClient.connect(loadNative(), { socketPath, manifest: MANIFEST, name });
}

/** What `/metrics` said at one moment. */
export class Metrics {
  readonly #text: string;

  constructor(text: string) {
    this.#text = text;
  }

  /** The sum over all series of that name whose labels contain `label`. */
  sum(name: string, label = ""): number {
    let sum = 0;
    for (const line of this.#text.split("\n")) {
      const [series = "", value] = line.split(" ");
      if (series !== name && !series.startsWith(`${name}{`)) continue;
      if (series.includes(label)) sum += Number(value);
    }
    return sum;
  }

  /** Messages from the broker, and what was made of all commands however they came. */
  get received(): number {
    return this.sum("hearth_bus_messages_total", 'direction="received"');
  }
  get carriedOut(): number {
    return this.sum("hearth_commands_total");
  }
  get refused(): number {
    return this.sum("hearth_commands_refused_total");
  }
  get duplicates(): number {
    return this.sum("hearth_command_duplicates_total");
  }
  get dropped(): number {
    return this.sum("hearth_bus_messages_total", 'direction="dropped"');
  }
}

function configOf({ folder, worker, nats }: HostOptions): string {
  const sections = {
    node: { id: worker },
    kv: {
      ...{
        ram_gib: RAM / 2 ** 30,
        ssd_gib: SSD / 2 ** 30,
        ssd_dir: join(folder, "ssd"),
        blocks_max: 4096,
      },
      ...{ lock_memory: "off", huge_pages: "off", ssd_ttl: "off" },
    },
    engine: { socket: join(folder, "e.sock"), acquire_deadline: "10s" },
    api: { listen: "127.0.0.1:0", loopback_role: "purge" },
    nats: { role: "purge", ...nats },
    control: { audit_file: join(folder, "audit.jsonl") },
    log: { format: "json" },
  };
  return Object.entries(sections)
    .flatMap(([name, keys]) => [
      `[${name}]`,
      ...Object.entries(keys).map(([key, value]) => `${key} = ${JSON.stringify(value)}`),
    ])
    .join("\n");
}
