import type { Json, Random } from "../../core/index.ts";
import type { RouteDecision, Router, Target, WorkerTable } from "../index.ts";
import type { ProxyCounts } from "./counts.ts";
import type { Attempted } from "./dispatch.ts";
import { type Asked, wantsUsage } from "./exchange.ts";
import { firstByteMs } from "./first-byte.ts";
import { towardsWorker } from "./headers.ts";
import { kvHintMembers, type ServedPart } from "./kv-hints.ts";
import { meetingOf, type PrefillSetting, prefillSglang, prefillVllm } from "./prefill.ts";
import { changeBody } from "./request-body.ts";
import type { ProxySettings } from "./settings.ts";
import { isEventStream, usageMember } from "./stream/index.ts";
import { holdAnswer, type Upstream, type UpstreamOrder } from "./upstream/index.ts";
import { addressAt } from "./worker-url.ts";

export interface AttemptParts {
  readonly settings: ProxySettings;
  readonly table: WorkerTable;
  readonly upstream: Upstream;
  readonly random: Random;
  readonly counts: ProxyCounts;
  readonly router: Pick<Router, "getPotentialLoads">;
}

type Members = Readonly<Record<string, Json>>;

/** Sends a request to the worker that was chosen, and to its prefill worker before or beside it. */
export async function attempt(
  parts: AttemptParts,
  asked: Asked,
  decision: RouteDecision,
): Promise<Attempted> {
  const { prefill, target } = decision;
  const { outputLimit, prompt } = asked.spec;
  if (outputLimit === null || hasOwnTransfer(asked))
    return send(parts, asked, target, {}, asked.signal);
  const hints = (part: ServedPart, isSourceKnown = false) =>
    kvHintMembers(parts, asked, { decision, part, isSourceKnown });
  const isSglang = asked.named.model.engine === "sglang";
  // SGLang's own two APIs alone take a bootstrap room.
  const isApart = !isSglang || prompt === "chat" || prompt === "completions";
  if (prefill === null || prefill.url === null || !isApart) {
    return send(parts, asked, target, hints("whole"), asked.signal);
  }
  if (isSglang) {
    // SGLang hands the blocks over itself.
    const each = { prefill: hints("prefill"), decode: hints("decode", true) };
    return meet(parts, asked, target, prefill, each);
  }
  const first = { ...added(asked), ...hints("prefill") };
  const setting = { ...settingOf(parts, asked, prefill, asked.signal), outputLimit };
  const members = await prefillVllm(setting, first);
  count(parts, members !== null);
  if (members === null) return send(parts, asked, target, hints("whole"), asked.signal);
  asked.flight.prefilled();
  const second = hints("decode", namesSource(members));
  return send(parts, asked, target, mergeTransfer(members, second), asked.signal);
}

/** The prefill worker's connector says which agent has its blocks. */
function namesSource({ kv_transfer_params: said }: Members): boolean {
  const { hearth } = (said ?? {}) as Members;
  const { source } = (hearth ?? {}) as Members;
  return typeof source === "string" && source !== "";
}

/** Both say something of the transfer of KV; what the proxy says of hints wins. */
function mergeTransfer(members: Members, hints: Members): Members {
  const [said, hinted] = [members.kv_transfer_params, hints.kv_transfer_params];
  if (said === undefined || hinted === undefined) return { ...members, ...hints };
  return { ...hints, kv_transfer_params: { ...(said as Members), ...(hinted as Members) } };
}

/** A client that arranges the transfer of KV itself. */
function hasOwnTransfer({ body }: Asked): boolean {
  return body.fields.kv_transfer_params != null || body.fields.bootstrap_room != null;
}

/** Both get it at once; without its prefill the decode worker would wait for nobody. */
async function meet(
  parts: AttemptParts,
  asked: Asked,
  target: Target,
  prefill: Target,
  hints: { readonly prefill: Members; readonly decode: Members },
): Promise<Attempted> {
  const meeting = meetingOf(prefill, asked.body, asked.named.model, parts.random);
  const alone = new AbortController();
  const signal = AbortSignal.any([asked.signal, alone.signal]);
  const setting = settingOf(parts, asked, prefill, signal);
  const prefilled = prefillSglang(setting, { ...added(asked), ...meeting, ...hints.prefill });
  const answered = send(parts, asked, target, { ...meeting, ...hints.decode }, signal);
  const isPrefilled = await Promise.race([prefilled, answered.then(() => true)]);
  if (!isPrefilled) {
    count(parts, false);
    alone.abort();
    await answered;
    const failure = { kind: "failed", stage: "sent", why: "the prefill failed" } as const;
    return { kind: "failed", failure, worker: prefill.worker };
  }
  void prefilled.then((isDone) => count(parts, isDone));
  return answered;
}

function count({ counts }: AttemptParts, isDone: boolean): void {
  if (isDone) counts.prefills++;
  else counts.prefillsFailed++;
}

/** What every worker of this request is told beside what the client wrote. */
function added({ hints, spec }: Asked): Members {
  if (!spec.takesSalt) return {};
  return hints.isSaltFromHeader && hints.cacheSalt !== null ? { cache_salt: hints.cacheSalt } : {};
}

async function send(
  parts: AttemptParts,
  asked: Asked,
  target: Target,
  members: Members,
  signal: AbortSignal,
): Promise<Attempted> {
  const { worker } = target;
  const strip = asked.named.model.stripFields;
  const usage = wantsUsage(asked) ? usageMember(asked.body.fields.stream_options) : {};
  const body = changeBody(asked.body, { set: { ...added(asked), ...usage, ...members }, strip });
  const answer = await parts.upstream.open({ ...orderTo(parts, asked, target), body }, signal);
  if (answer.kind === "failed") return { kind: "failed", failure: answer, worker };
  // Engines send the head of a stream at once: the first byte of the body is what counts.
  const first = await answer.read();
  if (isEventStream(answer.headers)) return { kind: "answer", answer, first };
  if (first.kind !== "failed") asked.flight.prefilled();
  const held = await holdAnswer(answer, first, parts.settings.heldBytesMax);
  if ("kind" in held) return { kind: "failed", failure: held, worker };
  return { kind: "answer", ...held };
}

function settingOf(
  parts: AttemptParts,
  asked: Asked,
  prefill: Target,
  signal: AbortSignal,
): PrefillSetting {
  const { upstream } = parts;
  const strip = asked.named.model.stripFields;
  const order = orderTo(parts, asked, prefill);
  return { upstream, body: asked.body, strip, order, signal };
}

function orderTo(
  { settings, table }: AttemptParts,
  { path, headers, flight }: Asked,
  target: Target,
): Omit<UpstreamOrder, "body"> {
  const { connectMs, idleMs } = settings;
  const sent = towardsWorker(headers, settings.authorization);
  if (!sent.has("x-request-id")) sent.set("x-request-id", flight.id);
  // One server may stand for several ranks: vLLM and SGLang both take the rank by this header.
  const isOneOfMany = table.targets.filter(({ worker }) => worker === target.worker).length > 1;
  if (isOneOfMany) sent.set("x-data-parallel-rank", String(target.rank));
  const url = addressAt(target.url!, path);
  const waits = { connectMs, firstByteMs: firstByteMs(settings), idleMs };
  return { method: "POST", url, headers: sent, ...waits };
}
