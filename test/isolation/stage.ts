import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findNatsServer } from "../../scripts/lib/nats-server.ts";
import { AgentProcess } from "../app/agent-process.ts";
import { startEngines, startRouter } from "../router/proxy/processes.ts";
import { NatsServer } from "../support/index.ts";
import { Child } from "./child.ts";

export interface Hits {
  readonly hits: number;
  readonly misses: number;
  /** Milliseconds. */
  readonly p50: number;
  readonly p99: number;
  readonly p999: number;
  readonly max: number;
}

export interface Turns {
  /** Milliseconds, of the last 15 s. */
  readonly longestMs: number;
  /** Processor time in milliseconds, of the last 15 s. */
  readonly longestCpuMs: number;
  /** Turns with more than 5 ms of processor time since the start. */
  readonly long: number;
}

/** An agent as it ships, an engine that acquires from it, and a process that floods. */
export class AgentStage implements AsyncDisposable {
  readonly agent: AgentProcess;
  readonly nats: NatsServer | null;
  readonly polite: Child;
  readonly flood: Child;
  readonly apiPort: number;

  private constructor(parts: Pick<AgentStage, "agent" | "nats" | "polite" | "flood" | "apiPort">) {
    this.agent = parts.agent;
    this.nats = parts.nats;
    this.polite = parts.polite;
    this.flood = parts.flood;
    this.apiPort = parts.apiPort;
  }

  static async open(): Promise<AgentStage> {
    const nats = findNatsServer().kind === "ready" ? await NatsServer.start() : null;
    const flood = await Child.start("flood.ts");
    const endpoint = await flood.ask<string>("publisher");
    const agent = await AgentProcess.start({
      config: {
        node: { id: "isolation" },
        kv: { ram_gib: 256 / 1_024, lock_memory: "off" },
        ...(nats === null ? {} : { nats: { url: nats.tcpUrl, role: "purge" } }),
        engine: { kv_events: endpoint, kv_events_model: "test", kv_events_block_tokens: 16 },
      },
    });
    const listening = await agent.logged("api listening");
    const apiPort = Number(/:(\d+)/.exec(JSON.stringify(listening).replace(/.*127/, ""))?.[1]);
    const polite = await Child.start("polite-engine.ts", agent.socketPath);
    return new AgentStage({ agent, nats, polite, flood, apiPort });
  }

  async turns(): Promise<Turns> {
    const response = await fetch(`http://127.0.0.1:${this.apiPort}/metrics`);
    const text = await response.text();
    const of = (name: string) => Number(new RegExp(`^${name} (\\S+)`, "m").exec(text)?.[1]);
    return {
      longestMs: of("hearth_event_loop_turn_seconds") * 1_000,
      longestCpuMs: of("hearth_event_loop_turn_cpu_seconds") * 1_000,
      long: of("hearth_event_loop_long_turns_total"),
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.polite[Symbol.asyncDispose]();
    await this.flood[Symbol.asyncDispose]();
    await this.agent[Symbol.asyncDispose]();
    await this.nats?.[Symbol.asyncDispose]();
  }
}

/** A router as it ships in front of two stand-ins of engines. */
export class ProxyStage implements AsyncDisposable {
  readonly flood: Child;
  readonly port: number;
  readonly #stack: AsyncDisposableStack;

  private constructor(flood: Child, port: number, stack: AsyncDisposableStack) {
    this.flood = flood;
    this.port = port;
    this.#stack = stack;
  }

  static async open(): Promise<ProxyStage> {
    await using stack = new AsyncDisposableStack();
    const folder = mkdtempSync(join(tmpdir(), "hearth-isolation-"));
    stack.defer(() => rmSync(folder, { recursive: true, force: true }));
    const engines = stack.use(await startEngines(["vllm", "vllm"]));
    const flood = stack.use(await Child.start("flood.ts"));
    const events = await flood.ask<string>("publisher");
    const router = stack.use(await startRouter(folder, engines.urls, null, undefined, events));
    return new ProxyStage(flood, Number(new URL(router.url).port), stack.move());
  }

  /** Requests of a polite client that got a whole answer of 200, a second. */
  async goodput(seconds: number): Promise<number> {
    const endMs = performance.now() + seconds * 1_000;
    const startMs = performance.now();
    let good = 0;
    const ask = async () => {
      while (performance.now() < endMs) {
        const response = await fetch(`http://127.0.0.1:${this.port}/v1/chat/completions`, {
          method: "POST",
          headers: { "content-type": "application/json" },
          body: JSON.stringify({
            ...{ model: "acme/tiny-chat", max_tokens: 4 },
            messages: [{ role: "user", content: "hello" }],
          }),
        }).catch(() => null);
        if (response?.status === 200 && (await response.text()).length > 0) good++;
        await Bun.sleep(5);
      }
    };
    await Promise.all(Array.from({ length: 4 }, ask));
    return good / ((performance.now() - startMs) / 1_000);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stack.disposeAsync();
  }
}
