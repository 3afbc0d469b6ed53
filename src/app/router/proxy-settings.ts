import { readFileSync } from "node:fs";
import type { ListedModel, RouterConfig } from "../../config/index.ts";
import { HearthError, messageOf } from "../../core/index.ts";
import type { ProxyModel, ProxySettings } from "../../router/proxy/index.ts";

/**
 * How the proxy behaves, as the router's file has it; `hasTokens`: this router asks its own callers
 * for tokens. Throws CONFIG_INVALID where the file with the engines' token cannot be read.
 */
export function proxySettings(config: RouterConfig, hasTokens: boolean): ProxySettings {
  const { proxy, api, models } = config;
  return {
    bodyBytesMax: proxy.bodyBytesMax,
    bodyBudgetBytes: proxy.bodyBudgetBytes,
    bodyTimeoutMs: proxy.bodyTimeoutMs,
    streamsMax: proxy.streamsMax,
    connectMs: proxy.connectMs,
    firstByteMs: proxy.firstByteMs,
    idleMs: proxy.idleMs,
    retriesMax: proxy.retries,
    isRetriedAfterSent: proxy.resend,
    healthEveryMs: proxy.healthCheck ? proxy.healthEveryMs : null,
    healthTimeoutMs: proxy.healthTimeoutMs,
    retryStatuses: [503],
    busyStatus: api.busyStatus,
    retryAfterSeconds: Math.ceil(proxy.retryAfterMs / 1_000),
    authorization: authorizationOf(proxy, hasTokens),
    tellsWorker: proxy.answerHeaders,
    clientsMayRoute: proxy.clientRouting,
    heldBytesMax: proxy.heldBytesMax,
    tokenThreads: proxy.tokenThreads,
    tokeniseMs: proxy.tokenTimeoutMs,
    tokenCacheTokens: proxy.tokenCache,
    models: proxyModels(models),
  };
}

export function proxyModels(models: readonly ListedModel[]): ProxyModel[] {
  return models.map(({ model, reasoningStart, reasoningEnd, ...kept }) => ({
    name: model,
    tokenizer: kept.tokenizer,
    chatTemplate: kept.chatTemplate,
    templateKwargs: kept.templateKwargs,
    fallback: kept.fallback,
    engine: kept.engine,
    loras: kept.loras,
    stripFields: kept.stripFields,
    bootstrapPort: kept.bootstrapPort,
    kvHints: kept.kvHints,
    kvHintActions: kept.kvHintActions,
    reasoning:
      reasoningStart === null || reasoningEnd === null
        ? null
        : { start: reasoningStart, end: reasoningEnd },
  }));
}

/** What engines with an API key want as `Authorization`; null: nothing. Throws CONFIG_INVALID. */
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
  const line = text.split("\n", 1)[0]!.trim();
  if (/^[\x21-\x7e]+$/.test(line)) return line;
  throw new HearthError("CONFIG_INVALID", `${file}: its first line is no token`);
}
