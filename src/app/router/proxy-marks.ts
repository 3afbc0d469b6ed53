import type { Policies } from "../../router/index.ts";
import type { OpenAiProxy, ProxyObserver } from "../../router/proxy/index.ts";

/** Whose marks they are where a request names no tenant. */
const NO_TENANT = "api";
const OWNER = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;

/** Tells policies what the proxy sees of messages: marks, reasoning, answers, ends of sessions. */
export function tellPolicies(
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
    // Answers are tokenised only where a policy looks at them.
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

/** Tenants may have any name, owners of pins may not. */
function ownerOf(tenant: string | null): string {
  if (tenant === null) return NO_TENANT;
  return OWNER.test(tenant) ? tenant : `tenant-${Bun.hash.xxHash3(tenant).toString(16)}`;
}
