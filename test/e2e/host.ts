import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { EngineClient } from "../../src/engine/index.ts";
import { AliasKind, TierBit } from "../../src/engine/protocol/index.ts";
import { encodeManifest, manifestOf } from "../../src/identity/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { createHandleBatch } from "../../src/store/index.ts";
import { CrashAgent } from "../crash/agent.ts";
import { Engine } from "../engine/engine.ts";
import { type BlockName, batchOf, digestOf, type OutcomeName, outcomeOf } from "../store/names.ts";
import { waitFor } from "../support/wait.ts";

/** Bytes of each block. */
export const BLOCK = 64 * 1024;
const RAM = 4 * 2 ** 20;
const SSD = 8 * 2 ** 20;
const AT_ONCE = 16;
const PATIENCE_MS = 30_000;

const MANIFEST = encodeManifest(
  manifestOf({ model: "e2e", dtype: "bfloat16", layout: "e2e:flat", blockTokens: 64 }),
);

/** A block with the 64-bit hash that its engine calls it by. */
export interface Named {
  readonly name: BlockName;
  readonly hash?: bigint;
  readonly transient?: boolean;
}

export interface HostOptions {
  readonly executable: string;
  readonly folder: string;
  readonly worker: string;
  readonly natsUrl: string;
  /** More keys of `[nats]`. */
  readonly nats?: Readonly<Record<string, string>>;
}

/** What reading came to: `ok` only where every byte was right. */
export type Read = OutcomeName | "wrong bytes";

/** An agent with RAM and SSD, and an engine that uses it through its plane. */
export class Host implements AsyncDisposable {
  readonly worker: string;
  readonly #options: HostOptions;
  #agent: CrashAgent | null = null;
  #engine: Engine | null = null;
  #flooded = 0;

  private constructor(options: HostOptions) {
    this.#options = options;
    this.worker = options.worker;
  }

  static async start(options: HostOptions): Promise<Host> {
    const host = new Host(options);
    writeFileSync(join(options.folder, "hearth.toml"), configOf(options));
    await host.start();
    return host;
  }

  get engine(): Engine {
    return this.#engine!;
  }

  /** Of its HTTP API. */
  get url(): string {
    return this.#agent!.url;
  }

  /** After a stop: on what it left. */
  async start(): Promise<void> {
    const { executable, folder } = this.#options;
    const configPath = join(folder, "hearth.toml");
    const agent = new CrashAgent({ executable, configPath, folder, plan: "" });
    this.#agent = agent;
    if ((await agent.ready) === null) throw new Error(agent.lastLines.join("\n"));
    await waitFor(
      async () => {
        // biome-ignore lint/suspicious/noExplicitAny: a report of many members
        const { arena } = await this.get<any>("/v1/status");
        return arena.bytes === arena.ready_bytes;
      },
      PATIENCE_MS,
      "the arena",
    );
    const socketPath = join(folder, "e.sock");
    const options = { socketPath, manifest: MANIFEST, name: "e2e" };
    this.#engine = new Engine(await EngineClient.connect(loadNative(), options));
  }

  async stop(by: "SIGTERM" | "SIGKILL"): Promise<void> {
    await this.#engine?.[Symbol.asyncDispose]();
    this.#engine = null;
    if (by === "SIGKILL") this.#agent?.kill();
    else this.#agent?.stop();
    await this.#agent?.ended;
    this.#agent = null;
  }

  async restart(by: "SIGTERM" | "SIGKILL"): Promise<void> {
    await this.stop(by);
    await this.start();
  }

  async get<T>(path: string): Promise<T> {
    const response = await fetch(this.url + path, { keepalive: false });
    return (await response.json()) as T;
  }

  async post<T>(path: string, body: string): Promise<T> {
    const headers = { "content-type": "application/json" };
    const options = { method: "POST", headers, body, keepalive: false };
    return (await (await fetch(this.url + path, options)).json()) as T;
  }

  /** Stores blocks and waits until there is room; parents before children. */
  async store(...blocks: readonly Named[]): Promise<void> {
    let left = blocks.map(({ name, hash, transient }) => ({
      name,
      bytes: BLOCK,
      ...(hash === undefined ? {} : { alias: BigInt.asUintN(64, hash) }),
      ...(transient === undefined ? {} : { transient }),
    }));
    const store = async () => {
      const outcomes = await this.engine.put(...left);
      left = left.filter((_, i) => outcomes[i] !== "ok" && outcomes[i] !== "present");
      return left.length === 0;
    };
    await waitFor(store, PATIENCE_MS, "room for blocks");
  }

  /** Stores, and has on SSD too. */
  async storeDurably(...blocks: readonly Named[]): Promise<void> {
    await this.store(...blocks);
    await this.persist();
  }

  async persist(): Promise<void> {
    const { durable } = await this.post<{ durable: boolean }>("/v1/persist", "");
    if (!durable) throw new Error("what is in RAM is not on SSD");
  }

  /** Gives blocks the page keys by which storage knows them. */
  async nameByPageKey(...names: readonly BlockName[]): Promise<void> {
    const keys = Buffer.concat(names.map((name) => Buffer.from(pageKeyOf(name), "hex")));
    const out = createHandleBatch(names.length);
    await this.engine.client.alias(batchOf(names), AliasKind.sha256, keys, out);
    const outcomes = names.map((_, i) => outcomeOf(out.outcome[i]!));
    if (outcomes.some((outcome) => outcome !== "ok")) throw new Error(`alias: ${outcomes}`);
  }

  /** Reads what is in RAM or, unless told `ram`, on SSD; waits until RAM has room for that. */
  async read(names: readonly BlockName[], from: "any" | "ram" = "any"): Promise<Read[]> {
    const read = async () => {
      const reads = await this.#readOnce(names, from);
      return reads.includes("full") ? null : reads;
    };
    return waitFor(read, PATIENCE_MS, "room to read into");
  }

  async #readOnce(names: readonly BlockName[], from: "any" | "ram"): Promise<Read[]> {
    const { client } = this.engine;
    const out = createHandleBatch(names.length);
    const tiers = from === "ram" ? TierBit.ram : 0;
    const options = { tiers, deadlineMs: 10_000, stopAtMiss: false };
    await client.acquire(batchOf(names), options, out);
    const reads: Read[] = [];
    const handles = names.map((name, i) => ({
      name,
      outcome: outcomeOf(out.outcome[i]!),
      slot: out.slot[i]!,
      generation: out.generation[i]!,
      offset: out.offset[i]!,
      bytes: out.bytes[i]!,
      checksum: out.checksum[i]!,
    }));
    for (const handle of handles) {
      const isRight = handle.outcome !== "ok" || this.engine.proves(handle);
      reads.push(isRight ? handle.outcome : "wrong bytes");
    }
    this.engine.release(handles.filter(({ outcome }) => outcome === "ok"));
    return reads;
  }

  /** Other blocks, so many times as many as RAM and SSD hold; each gone through the engine. */
  async flood(times: number, capacity = RAM + SSD): Promise<void> {
    const blocks = Math.ceil((capacity * times) / BLOCK);
    for (let done = 0; done < blocks; done += AT_ONCE) {
      const names = Array.from({ length: AT_ONCE }, () => ({ name: `flood-${this.#flooded++}` }));
      await this.store(...names);
    }
  }

  /** Until nothing of these is in RAM any more, while SSD keeps them. */
  async crowdOutOfRam(...names: readonly BlockName[]): Promise<void> {
    await waitFor(
      async () => {
        await this.flood(0.25, RAM);
        const tiers = await Promise.all(names.map((name) => this.tiersOf(name)));
        return tiers.every((where) => where === "ssd");
      },
      PATIENCE_MS,
      "a RAM without them",
    );
  }

  /** Where it is, as the tree has it: "ram+ssd", "ssd", or "" where it is not. */
  async tiersOf(name: BlockName): Promise<string> {
    const root = digestOf(name).toHex();
    const query = `root=${root}&depth=0&fields=tiers`;
    const page = await this.get<{ blocks?: { tiers: string[] }[] }>(`/v1/tree?${query}`);
    return page.blocks?.[0]?.tiers.join("+") ?? "";
  }

  async leases(): Promise<{ name: string; blocks: number; remaining_seconds: number }[]> {
    return (await this.get<{ leases: never[] }>("/v1/leases")).leases;
  }

  async pins(): Promise<{ owner: string; blocks: number; remaining_seconds: number | null }[]> {
    return (await this.get<{ pins: never[] }>("/v1/pins")).pins;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop("SIGKILL");
  }
}

/** As storage behind an engine would name the block: SHA-256 in hex. */
export function pageKeyOf(name: BlockName): string {
  return new Bun.CryptoHasher("sha256").update(`page ${name}`).digest("hex");
}

function configOf({ folder, worker, natsUrl, nats }: HostOptions): string {
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
    nats: { url: natsUrl, role: "purge", receipts: true, ...nats },
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
