import { readFileSync } from "node:fs";
import { type ApiServer, createProxyApi, readAccess } from "../../api/index.ts";
import type { ListedModel, RouterConfig } from "../../config/index.ts";
import {
  type Clock,
  HearthError,
  messageOf,
  type Random,
  type WorkerId,
} from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import { type Health, type Logger, raiseDescriptorLimit } from "../../observability/index.ts";
import type { Policies, Router, WorkerTable } from "../../router/index.ts";
import {
  OpenAiProxy,
  PROXY_DEFAULTS,
  type ProxyModel,
  type ProxyObserver,
  type ProxyOptions,
  type ProxySettings,
} from "../../router/proxy/index.ts";

interface ProxyServiceParts {
  readonly config: RouterConfig;
  readonly native: Native;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly health: Pick<Health, "raise" | "report">;
  readonly router: Router;
  readonly table: WorkerTable;
  /** Cache policies that receive the proxy's observations. */
  readonly policies: Pick<Policies, "marks" | "counts">;
  /** Called when the proxy uses an excluded worker again: its engine may have restarted. */
  readonly onBack: (worker: WorkerId) => void;
}

/** Owns the proxy and its HTTP server. */
export class ProxyService {
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

  /**
   * Opens the proxy. Returns null if no proxy address is configured. Throws if a tokenizer cannot
   * be loaded or the address cannot be listened on.
   */
  static async open(parts: ProxyServiceParts): Promise<ProxyService | null> {
    const { config, native, clock, random, logger, router, table, policies } = parts;
    const { listen, streamsMax, corsOrigins } = config.proxy;
    if (listen === "off") return null;
    const { access, reload } = await readAccess(config.api);
    const settings = proxySettings(config, access.tokens !== null);
    const onFault = (thrown: unknown) =>
      logger.error("proxy request failed", { reason: String(thrown) });
    const proxy = await OpenAiProxy.open({
      ...{ clock, random, router, table, settings, onFault },
      onWorker: workerNotes(parts),
      onShort: () => raiseDescriptorLimit(parts.health),
      onTokens: tokenReports(parts),
    });
    try {
      const { bodyBytesMax } = settings;
      const connectionsMax = streamsMax * CONNECTIONS_PER_STREAM;
      const api = createProxyApi(proxy, {
        ...{
          clock,
          native,
          access,
          bodyBytesMax,
          connectionsMax,
          stopMs: PROXY_DRAIN_MS,
          corsOrigins,
        },
        onFault: (_path, thrown) => onFault(thrown),
      });
      const server = api.listen({ host: listen.host, port: listen.port });
      logger.info("proxy listening", { address: server.url });
      createPolicyObserver(proxy, policies);
      return new ProxyService(proxy, server, reload);
    } catch (error) {
      await proxy[Symbol.asyncDispose]();
      throw error;
    }
  }

  get url(): string {
    return this.#server.url;
  }

  /** Rereads the models and the API tokens. Rejects with CONFIG_INVALID if a file is invalid. */
  async reload({ models }: RouterConfig): Promise<void> {
    await this.#readTokens();
    await this.proxy.setModels(proxyModels(models));
  }

  /**
   * Stops accepting requests. Open streams may finish until the configured time ends or `forceStop`
   * fires.
   */
  async stop(forceStop: AbortSignal): Promise<void> {
    this.proxy.drain();
    const isClosed = this.#server[Symbol.asyncDispose]();
    const cut = () => void this.proxy[Symbol.asyncDispose]();
    if (forceStop.aborted) cut();
    forceStop.addEventListener("abort", cut, { once: true });
    await isClosed;
    forceStop.removeEventListener("abort", cut);
    await this.proxy[Symbol.asyncDispose]();
  }
}

/**
 * Returns a listener that logs when the proxy excludes a worker or uses it again. It raises a
 * health code while a worker is excluded.
 */
function workerNotes({ logger, health, onBack }: ProxyServiceParts) {
  const out = new Map<WorkerId, string>();
  return (worker: WorkerId, why: string | null) => {
    if (why === null) {
      out.delete(worker);
      logger.info("worker back in use", { worker });
      onBack(worker);
    } else {
      out.set(worker, why);
      logger.warn("worker excluded", { worker, reason: why });
    }
    const details = [...out].map(([name, reason]) => `${name}: ${reason}`).join("; ");
    health.report("ROUTER_WORKER_OUT", details || null);
  };
}

/** Time without a token mismatch until the health code of token mismatches is cleared. */
const DIFFERENCE_MS = 600_000;
/** Minimum interval between two log lines per model about prompts that cannot be tokenized. */
const FAILED_LOG_MS = 60_000;
const REASON_MAX = 200;

function tokenReports({
  clock,
  logger,
  health,
}: ProxyServiceParts): NonNullable<ProxyOptions["onTokens"]> {
  const loggedMs = new Map<string, number>();
  const differences = new Map<string, { readonly line: string; readonly atMs: number }>();
  return {
    failed(model, why) {
      const now = clock.monotonicMs();
      if (now - (loggedMs.get(model) ?? Number.NEGATIVE_INFINITY) < FAILED_LOG_MS) return;
      loggedMs.set(model, now);
      const reason = why.slice(0, REASON_MAX);
      logger.warn("tokenizing failed, routing by the fallback", { model, reason });
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

/** Time for which running streams may continue after SIGTERM. */
export const PROXY_DRAIN_MS = 30_000;
/** Idle connections are kept, so there are more of them than requests. */
const CONNECTIONS_PER_STREAM = 4;
/** Memory for request bodies: average bytes for each concurrent request. */
const BODY_BYTES_PER_STREAM = 128 * 1024;

/**
 * Returns the proxy settings from the router's configuration. `hasTokens`: the router requires API
 * tokens from its clients. Throws CONFIG_INVALID if the file with the engines' token is unreadable.
 */
export function proxySettings(config: RouterConfig, hasTokens: boolean): ProxySettings {
  const { proxy, api, models } = config;
  return {
    ...PROXY_DEFAULTS,
    ...proxy,
    bodyBudgetBytes: Math.max(proxy.bodyBytesMax, proxy.streamsMax * BODY_BYTES_PER_STREAM),
    busyStatus: api.busyStatus,
    authorization: authorizationOf(proxy, hasTokens),
    clientsMayRoute: proxy.clientRouting,
    models: proxyModels(models),
  };
}

export function proxyModels(models: readonly ListedModel[]): ProxyModel[] {
  return models.map(({ model, reasoningStart: start, reasoningEnd: end, ...settings }) => ({
    ...settings,
    name: model,
    reasoning: start === null || end === null ? null : { start, end },
  }));
}

/**
 * Returns the `Authorization` header for engines with an API key. Null if none is configured.
 * Throws CONFIG_INVALID if the token file is unreadable.
 */
export function engineAuthorization({ engineTokenFile }: RouterConfig["proxy"]): string | null {
  return engineTokenFile === null ? null : `Bearer ${firstLineOf(engineTokenFile)}`;
}

function authorizationOf(
  proxy: RouterConfig["proxy"],
  hasTokens: boolean,
): ProxySettings["authorization"] {
  const value = engineAuthorization(proxy);
  if (value !== null) return { value };
  const { authorization } = proxy;
  if (authorization !== "auto") return authorization;
  return hasTokens ? "drop" : "pass";
}

function firstLineOf(file: string): string {
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch (cause) {
    const what = `proxy.engine_token_file cannot be read: ${messageOf(cause)}`;
    throw new HearthError("CONFIG_INVALID", what, { cause });
  }
  const line = text.split("\n", 1)[0].trim();
  if (/^[\x21-\x7e]+$/.test(line)) return line;
  throw new HearthError("CONFIG_INVALID", `${file}: the first line is not a valid token`);
}

/** Owner of cache marks in requests that name no tenant. */
const NO_TENANT = "api";
const OWNER = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;

/**
 * Forwards the proxy's observations to the policies: cache marks, reasoning tokens, answers, and
 * ends of sessions.
 */
export function createPolicyObserver(
  proxy: Pick<OpenAiProxy, "listen">,
  policies: Pick<Policies, "marks" | "counts">,
): Disposable {
  const { marks } = policies;
  const lastOf = new Map<string, string>();
  const answered = (requestId: string, output: Uint32Array) => marks.answered(requestId, output);
  const observer: ProxyObserver = {
    prompt({ requestId, model, sessionId, isSessionEnd, ...seen }) {
      if (seen.reasoning !== null) {
        marks.reasoningTokens(model, { open: seen.reasoning.start, close: seen.reasoning.end });
      }
      if (isSessionEnd && sessionId !== null) lastOf.set(requestId, sessionId);
      if (seen.marks.length === 0) return;
      const wanted = seen.marks.map(({ tokens, ttlSeconds }) => ({
        promptTokens: tokens,
        ttlMs: ttlSeconds === null ? null : ttlSeconds * 1_000,
      }));
      marks.cacheControl(requestId, ownerOf(seen.cacheSalt), wanted);
    },
    // The proxy tokenizes answers only if this member is set; only the reasoning policy uses
    // answers.
    get answered() {
      const isOn = policies.counts.some(({ policy }) => policy === "reasoning");
      return isOn ? answered : undefined;
    },
    ended(requestId) {
      const sessionId = lastOf.get(requestId);
      if (sessionId === undefined) return;
      lastOf.delete(requestId);
      marks.sessionEnded(sessionId);
    },
  };
  return proxy.listen(observer);
}

/** Converts a tenant name, which may have any characters, to a valid owner name. */
function ownerOf(tenant: string | null): string {
  if (tenant === null) return NO_TENANT;
  return OWNER.test(tenant) ? tenant : `tenant-${Bun.hash.xxHash3(tenant).toString(16)}`;
}
