import { type ApiServer, createProxyApi, readAccess } from "../../api/index.ts";
import type { RouterConfig } from "../../config/index.ts";
import type { Clock, Random, WorkerId } from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import { type Health, type Logger, raiseDescriptorLimit } from "../../observability/index.ts";
import type { Policies, Router, WorkerTable } from "../../router/index.ts";
import { type OpenAiProxy, openProxy, type ProxyOptions } from "../../router/proxy/index.ts";
import { tellPolicies } from "./proxy-marks.ts";
import { proxyModels, proxySettings } from "./proxy-settings.ts";

export interface ProxyRoomParts {
  readonly config: RouterConfig;
  readonly native: Native;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly health: Pick<Health, "raise" | "clear">;
  readonly router: Router;
  readonly table: WorkerTable;
  /** They are told what the proxy sees of messages. */
  readonly policies: Pick<Policies, "marks" | "counts">;
  /** A worker that was left out is used again: its engine may be another run. */
  readonly onBack: (worker: WorkerId) => void;
}

/** The proxy and its server, from opening to end. */
export class ProxyRoom {
  readonly proxy: OpenAiProxy;
  readonly #server: ApiServer;
  readonly #readTokens: () => Promise<readonly string[]>;

  private constructor(
    proxy: OpenAiProxy,
    server: ApiServer,
    readTokens: () => Promise<readonly string[]>,
  ) {
    this.proxy = proxy;
    this.#server = server;
    this.#readTokens = readTokens;
  }

  /** Null where it listens nowhere. Throws where a tokenizer or the address cannot be had. */
  static async open(parts: ProxyRoomParts): Promise<ProxyRoom | null> {
    const { config, native, clock, random, logger, router, table, policies } = parts;
    const { listen, drainMs, connectionsMax, corsOrigins } = config.proxy;
    if (listen === "off") return null;
    const { access, reload } = await readAccess(config.api);
    const settings = proxySettings(config, access.tokens !== null);
    const onFault = (thrown: unknown) =>
      logger.error("a request to the proxy failed", { reason: String(thrown) });
    const proxy = await openProxy({
      ...{ clock, random, router, table, settings, onFault },
      onWorker: workerNotes(parts),
      onShort: () => raiseDescriptorLimit(parts.health),
      onTokens: tokenReports(parts),
    });
    try {
      const { bodyBytesMax } = settings;
      const api = createProxyApi(proxy, {
        ...{ clock, native, access, bodyBytesMax, connectionsMax, stopMs: drainMs, corsOrigins },
        onFault: (_path, thrown) => onFault(thrown),
      });
      const server = api.listen({ host: listen.host, port: listen.port });
      logger.info("proxy listening", { address: server.url });
      tellPolicies(proxy, policies);
      return new ProxyRoom(proxy, server, reload);
    } catch (error) {
      await proxy[Symbol.asyncDispose]();
      throw error;
    }
  }

  get url(): string {
    return this.#server.url;
  }

  /** Takes models and tokens anew. Rejects with CONFIG_INVALID where a file is refused. */
  async reload({ models }: RouterConfig): Promise<void> {
    await this.#readTokens();
    await this.proxy.setModels(proxyModels(models));
  }

  /** Takes nothing new; streams may finish for as long as the file says, or until `hurry`. */
  async stop(hurry: AbortSignal): Promise<void> {
    this.proxy.drain();
    const isClosed = this.#server[Symbol.asyncDispose]();
    const cut = () => void this.proxy[Symbol.asyncDispose]();
    if (hurry.aborted) cut();
    hurry.addEventListener("abort", cut, { once: true });
    await isClosed;
    hurry.removeEventListener("abort", cut);
    await this.proxy[Symbol.asyncDispose]();
  }
}

/** Logs each worker that is left out or used again, and raises a health code while one is out. */
function workerNotes({ logger, health, onBack }: ProxyRoomParts) {
  const out = new Map<WorkerId, string>();
  return (worker: WorkerId, why: string | null) => {
    if (why === null) {
      out.delete(worker);
      logger.info("worker is used again", { worker });
      onBack(worker);
    } else {
      out.set(worker, why);
      logger.warn("worker is left out", { worker, reason: why });
    }
    const details = [...out].map(([name, reason]) => `${name}: ${reason}`).join("; ");
    if (out.size > 0) health.raise("ROUTER_WORKER_OUT", details);
    else health.clear("ROUTER_WORKER_OUT");
  };
}

/** A difference of tokens is over when there was none for this long. */
const DIFFERENCE_MS = 600_000;
/** Of one model, prompts that cannot be tokenised are logged this often. */
const FAILED_LOG_MS = 60_000;
const REASON_MAX = 200;

function tokenReports({
  clock,
  logger,
  health,
}: ProxyRoomParts): NonNullable<ProxyOptions["onTokens"]> {
  const loggedMs = new Map<string, number>();
  const differences = new Map<string, { readonly line: string; readonly atMs: number }>();
  return {
    failed(model, why) {
      const now = clock.monotonicMs();
      if (now - (loggedMs.get(model) ?? Number.NEGATIVE_INFINITY) < FAILED_LOG_MS) return;
      loggedMs.set(model, now);
      const reason = why.slice(0, REASON_MAX);
      logger.warn("prompt not tokenised, routing it by the fallback", { model, reason });
    },
    differ({ model, here, engine, shape }) {
      const atMs = clock.monotonicMs();
      const counts = `${here} tokens here, ${engine} at the engine`;
      differences.set(model, { line: `${model}: ${counts}, request shape ${shape}`, atMs });
      for (const [name, last] of differences) {
        if (atMs - last.atMs >= DIFFERENCE_MS) differences.delete(name);
      }
      const lines = [...differences.values()].map(({ line }) => line);
      health.raise("PROXY_TOKENS", lines.join("; "), { forMs: DIFFERENCE_MS });
    },
  };
}
