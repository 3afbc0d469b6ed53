import type { Clock, Random } from "../../../core/index.ts";
import { type Authorization, ownHeaders } from "../headers.ts";
import { readAll, type Upstream } from "../upstream/index.ts";
import { addressAt } from "../worker-url.ts";
import { EnginePulse } from "./engine-pulse.ts";
import { eventSources } from "./event-sources.ts";

export interface ProbeParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly upstream: Upstream;
  readonly authorization: Authorization;
  /** How long `GET /health` may take. */
  readonly timeoutMs: number;
}

const ANSWER_BYTES_MAX = 64 * 1024;
/** A deadline that fires this much late says more of this process than of the worker. */
const LATE_MS = 500;
const SERVER_ERROR = 500;

type Verdict = { readonly kind: "well" | "unknown" } | { readonly kind: "sick"; why: string };

type Got =
  | { readonly status: number; readonly text: string }
  /** `isOurs`: no worker was asked. */
  | { readonly why: string; readonly isOurs: boolean };

/**
 * The health of one server: `GET /health`, and the pulse of the processes behind it where it says
 * that they publish KV events. Any answer below 500 is a sign of life: some servers have no such
 * path. Nothing that a request does, or waits for, counts.
 */
export class ServerProbe implements AsyncDisposable {
  readonly url: string;
  readonly #parts: ProbeParts;
  readonly #onChange: () => void;
  readonly #closing = new AbortController();
  #pulses: EnginePulse[] = [];
  #hasSources = false;
  #isAsking = false;
  #sick: string | null = null;

  constructor(url: string, parts: ProbeParts, onChange: () => void) {
    [this.url, this.#parts, this.#onChange] = [url, parts, onChange];
  }

  /** Why it must not be chosen; null: it may be. */
  get why(): string | null {
    if (this.#sick !== null) return this.#sick;
    const silent = this.#pulses.find(({ isSilent }) => isSilent);
    return silent === undefined ? null : `the engine process behind ${silent.endpoint} is silent`;
  }

  /** Processes of the engine that answer pings. */
  get pulses(): number {
    return this.#pulses.filter(({ isHeard }) => isHeard).length;
  }

  /** Asks once more, unless a question is under way. */
  async look(): Promise<void> {
    if (this.#isAsking) return;
    this.#isAsking = true;
    for (const pulse of this.#pulses) pulse.look();
    const verdict = await this.#ask();
    this.#isAsking = false;
    if (this.#closing.signal.aborted || verdict.kind === "unknown") return;
    const before = this.why;
    // Another run of the engine may publish where the one before did not.
    if (this.#sick !== null && this.#pulses.length === 0) this.#hasSources = false;
    this.#sick = verdict.kind === "sick" ? verdict.why : null;
    if ((before === null) !== (this.why === null)) this.#onChange();
    if (verdict.kind === "well") await this.#findPulses();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closing.abort();
    await Promise.all(this.#pulses.map((pulse) => pulse[Symbol.asyncDispose]()));
  }

  async #ask(): Promise<Verdict> {
    const { clock, timeoutMs } = this.#parts;
    const startMs = clock.monotonicMs();
    const late = new AbortController();
    using _deadline = clock.after(timeoutMs, () => late.abort());
    const got = await this.#get("/health", late.signal);
    if (late.signal.aborted) {
      const isOurs = clock.monotonicMs() - startMs > timeoutMs + LATE_MS;
      const why = `no answer to GET /health within ${timeoutMs} ms`;
      return isOurs ? { kind: "unknown" } : { kind: "sick", why };
    }
    if ("why" in got && got.isOurs) return { kind: "unknown" };
    if ("why" in got) return { kind: "sick", why: `GET /health failed: ${got.why}` };
    if (got.status < SERVER_ERROR) return { kind: "well" };
    return { kind: "sick", why: `GET /health answered ${got.status}` };
  }

  /** Once for each run of an engine: a new one may publish elsewhere, or no more. */
  async #findPulses(): Promise<void> {
    if (this.#hasSources && this.#pulses.some(({ isGone }) => isGone)) {
      const gone = this.#pulses;
      [this.#pulses, this.#hasSources] = [[], false];
      await Promise.all(gone.map((pulse) => pulse[Symbol.asyncDispose]()));
    }
    if (this.#hasSources) return;
    this.#hasSources = true;
    const got = await this.#get("/kv_event_sources", this.#closing.signal);
    if (this.#closing.signal.aborted || "why" in got || got.status !== 200) return;
    const { clock, random } = this.#parts;
    const endpoints = new Set(eventSources(got.text, this.url).map(({ events }) => events));
    this.#pulses = [...endpoints].map((endpoint) => {
      return new EnginePulse(endpoint, { clock, random }, this.#onChange);
    });
  }

  async #get(path: string, signal: AbortSignal): Promise<Got> {
    const { upstream, authorization, timeoutMs } = this.#parts;
    const limits = { connectMs: timeoutMs, firstByteMs: timeoutMs, idleMs: timeoutMs };
    const headers = ownHeaders(authorization);
    const order = { method: "GET", url: addressAt(this.url, path), headers, body: null } as const;
    const both = AbortSignal.any([signal, this.#closing.signal]);
    const answer = await upstream.open({ ...order, ...limits }, both);
    if (answer.kind === "failed") {
      return { why: answer.why, isOurs: answer.stage === "unsendable" };
    }
    const text = await readAll(answer, ANSWER_BYTES_MAX);
    return text === null
      ? { why: "its answer broke off", isOurs: false }
      : { status: answer.status, text };
  }
}
