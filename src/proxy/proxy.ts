import type { Clock, Random } from "../core/index.ts";
import type { RouteDecision, Router, WorkerTable } from "../router/index.ts";
import { busy, invalid, refuse, unknownModel } from "./answers.ts";
import { attempt } from "./attempt.ts";
import { ProxyCounts, type ProxySnapshot } from "./counts.ts";
import { Dispatch, type DispatchParts, type Won } from "./dispatch.ts";
import { DownWorkers } from "./down-workers.ts";
import { type Endpoint, endpointOf } from "./endpoint.ts";
import type { Asked } from "./exchange.ts";
import { Flight } from "./flight.ts";
import { hintsOf } from "./hints.ts";
import { ModelNames } from "./model-names.ts";
import { ModelList } from "./models.ts";
import type { ProxyObserver, RequestEnd } from "./observer.ts";
import { promptOf } from "./prompt.ts";
import { readRequestBody } from "./request-body.ts";
import type { ProxyModel, ProxySettings } from "./settings.ts";
import { OutputWatch, Relay } from "./stream/index.ts";
import { openTokens, type Tokens } from "./tokens/index.ts";
import { createHttpUpstream, type Upstream } from "./upstream/index.ts";

export interface ProxyOptions {
  readonly clock: Clock;
  readonly random: Random;
  readonly router: Router;
  readonly table: WorkerTable;
  readonly settings: ProxySettings;
  /** Told of faults of our own. */
  readonly onFault: (thrown: unknown) => void;
}

/** Where a request comes from. */
export interface ProxyCaller {
  /** Called once the whole body is there: what follows may take its time. */
  readonly onBody?: () => void;
}

/** An OpenAI-compatible API in front of the workers of a router. */
export interface OpenAiProxy extends AsyncDisposable {
  /**
   * Answers a request; never rejects. The request must be the server's own, with its body unread:
   * its signal is how we learn that the client left. The server must let an answer be silent for
   * long: engines say nothing while they compute a prompt.
   */
  fetch(request: Request, caller?: ProxyCaller): Promise<Response>;
  /**
   * From now on these models, with their files read again; requests under way keep theirs. Rejects
   * with CONFIG_INVALID, and changes nothing, where a tokenizer cannot be used.
   */
  setModels(models: readonly ProxyModel[]): Promise<void>;
  /** From now on new requests are answered as where all workers are busy. */
  drain(): void;
  listen(observer: ProxyObserver): Disposable;
  snapshot(): ProxySnapshot;
}

/** Reads the tokenizers. Rejects with CONFIG_INVALID where one cannot be used. */
export async function openProxy(options: ProxyOptions): Promise<OpenAiProxy> {
  const { models } = options.settings;
  const tokens = await tokensFor(options, models);
  return new RoutedProxy(options, { models, tokens }, createHttpUpstream(options.clock));
}

/** Models and their tokens, which change together. */
interface Vocabulary {
  readonly models: readonly ProxyModel[];
  readonly tokens: Tokens;
}

function tokensFor(
  { clock, settings }: ProxyOptions,
  models: readonly ProxyModel[],
): Promise<Tokens> {
  const files = models.flatMap(({ name, tokenizer, chatTemplate, engine, reasoning }) =>
    tokenizer === null
      ? []
      : [{ name, tokenizer, chatTemplate, reasoning, partSeparator: PART_SEPARATORS[engine] }],
  );
  return openTokens({
    clock,
    models: files,
    threads: settings.tokenThreads,
    cacheTokens: settings.tokenCacheTokens,
    timeMs: settings.tokeniseMs,
  });
}

/** What engines put between the texts of one message. */
const PART_SEPARATORS = { vllm: "\n", sglang: " " } as const;

class RoutedProxy implements OpenAiProxy {
  readonly #options: ProxyOptions;
  readonly #upstream: Upstream;
  #tokens: Tokens;
  #names: ModelNames;
  readonly #models: ModelList;
  readonly #counts = new ProxyCounts();
  readonly #observers = new Set<ProxyObserver>();
  readonly #dispatch: DispatchParts;
  /** Makes ids of this proxy different from those of others, and of its runs before. */
  readonly #prefix: string;
  readonly #active = new Map<string, AbortController>();
  #nextId = 1;
  #isDraining = false;

  constructor(options: ProxyOptions, { models, tokens }: Vocabulary, upstream: Upstream) {
    [this.#options, this.#tokens, this.#upstream] = [options, tokens, upstream];
    const { table, settings, random, clock, router } = options;
    this.#prefix = random.u32().toString(16).padStart(8, "0");
    this.#names = new ModelNames(table, models);
    this.#models = new ModelList({ clock, table, settings, upstream });
    const counts = this.#counts;
    const parts = { settings, table, upstream, random, counts, router };
    this.#dispatch = {
      ...options,
      counts,
      down: new DownWorkers(clock),
      attempt: (asked, decision) => attempt(parts, asked, decision),
      onRouted: (asked, decision) => this.#routed(asked, decision),
    };
  }

  async fetch(request: Request, caller: ProxyCaller = {}): Promise<Response> {
    const endpoint = endpointOf(request.method, request.url);
    if (endpoint === "unknown") return refuse(invalid("There is no such address.", undefined, 404));
    if (endpoint === "method") {
      return refuse(invalid(`${request.method} is not allowed here.`, undefined, 405));
    }
    try {
      if (endpoint.kind === "models") {
        return await this.#models.answer(endpoint.id, this.#names, request);
      }
      return await this.#generate(endpoint, request, caller);
    } catch (thrown) {
      this.#options.onFault(thrown);
      const message = "The proxy failed; its log says more.";
      return refuse({ status: 500, message, type: "server_error", code: "internal" });
    }
  }

  async setModels(models: readonly ProxyModel[]): Promise<void> {
    const tokens = await tokensFor(this.#options, models);
    this.#tokens[Symbol.dispose]();
    this.#tokens = tokens;
    this.#names = new ModelNames(this.#options.table, models);
    if (this.#isDraining) tokens[Symbol.dispose]();
  }

  drain(): void {
    this.#isDraining = true;
  }

  listen(observer: ProxyObserver): Disposable {
    this.#observers.add(observer);
    return { [Symbol.dispose]: () => void this.#observers.delete(observer) };
  }

  snapshot(): ProxySnapshot {
    const { outcomes, retries, prefills, prefillsFailed, outputTokens } = this.#counts;
    return {
      active: this.#active.size,
      outcomes: { ...outcomes },
      retries,
      prefills,
      prefillsFailed,
      outputTokens,
      tokens: this.#tokens.counts,
    };
  }

  /** Answers under way are cut off: who wants them to end waits for `active` to be 0 before. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#isDraining = true;
    for (const controller of this.#active.values()) controller.abort();
    this.#tokens[Symbol.dispose]();
    this.#upstream[Symbol.dispose]();
  }

  async #generate(
    endpoint: Extract<Endpoint, { path: string }>,
    request: Request,
    { onBody }: ProxyCaller,
  ): Promise<Response> {
    const { settings } = this.#options;
    if (this.#isDraining || this.#active.size >= settings.streamsMax) {
      this.#counts.outcomes.busy++;
      const why = this.#isDraining ? "The proxy stops." : "Too many requests are under way.";
      return refuse(busy(why, settings.busyStatus, settings.retryAfterSeconds));
    }
    const id = `${this.#prefix}-${this.#nextId++}`;
    const controller = new AbortController();
    this.#active.set(id, controller);
    const flight = new Flight(id, this.#options.router, this.#observers);
    const onAbort = () => controller.abort();
    request.signal.addEventListener("abort", onAbort, { once: true });
    if (request.signal.aborted) onAbort();
    let isPassedOn = false;
    const ended = (end: RequestEnd) => {
      request.signal.removeEventListener("abort", onAbort);
      this.#active.delete(id);
      flight.end(end);
    };
    try {
      const asked = await this.#read(endpoint, request, flight, controller.signal);
      onBody?.();
      if (asked instanceof Response) {
        this.#counts.outcomes.refused++;
        return asked;
      }
      const dispatched = await new Dispatch(this.#dispatch, asked).run();
      if (dispatched.kind !== "won") return this.#lost(dispatched);
      isPassedOn = true;
      return await this.#pass(asked, dispatched, ended);
    } finally {
      if (!isPassedOn) ended({ how: "refused", outputTokens: 0 });
    }
  }

  /** The request with all that is to be known of it, or the answer to one that is wrong. */
  async #read(
    { kind, path }: Extract<Endpoint, { path: string }>,
    request: Request,
    flight: Flight,
    signal: AbortSignal,
  ): Promise<Asked | Response> {
    const { settings } = this.#options;
    const body = await readRequestBody(request, settings.bodyBytesMax);
    if ("status" in body) return refuse(body);
    const named = this.#names.find(body.model, body.fields.lora_path);
    if (named === null) return refuse(unknownModel(body.model));
    const { headers } = request;
    const hints = hintsOf(headers, body.fields, settings.clientsMayRoute);
    const prompt = await promptOf(kind, body, named.model, this.#tokens);
    return { kind, path, headers, body, named, hints, prompt, flight, signal };
  }

  #lost(lost: Exclude<Awaited<ReturnType<Dispatch["run"]>>, Won>): Response {
    const { outcomes } = this.#counts;
    if (lost.kind === "left") {
      outcomes.client_left++;
      // Nobody reads it.
      return new Response(null, { status: 499 });
    }
    outcomes[lost.how === "busy" ? "busy" : lost.how === "none" ? "no_worker" : "worker_failed"]++;
    return refuse(lost.error);
  }

  #pass(asked: Asked, won: Won, ended: (end: RequestEnd) => void): Promise<Response> {
    const { flight, named, body } = asked;
    const { worker } = won.decision.target;
    const isWatched = [...this.#observers].some(({ answered }) => answered !== undefined);
    const watch = isWatched && won.answer.status === 200 ? new OutputWatch(body.isStream) : null;
    const relay = new Relay({
      won,
      flight,
      headers: this.#options.settings.tellsWorker
        ? [
            ["x-hearth-request-id", flight.id],
            ["x-hearth-worker", worker],
          ]
        : [],
      heldBytesMax: this.#options.settings.heldBytesMax,
      watch,
      ended: (end) => {
        const outcome = end.how === "client" ? "client_left" : "worker_failed";
        this.#counts.outcomes[end.how === "done" ? "done" : outcome]++;
        this.#counts.outputTokens += end.outputTokens;
        if (watch === null || end.how !== "done") return ended(end);
        void this.#answered(named.model.name, flight, watch).finally(() => ended(end));
      },
    });
    return relay.respond();
  }

  /** Told before the router forgets the request. */
  async #answered(model: string, flight: Flight, watch: OutputWatch): Promise<void> {
    const output = await watch.tokens(model, this.#tokens, this.#tokens.reasoning(model));
    if (output === null) return;
    for (const observer of this.#observers) observer.answered?.(flight.id, output);
  }

  #routed({ flight, named, hints, prompt }: Asked, decision: RouteDecision): void {
    for (const observer of this.#observers) {
      observer.prompt?.({
        requestId: flight.id,
        model: named.base,
        loraName: named.loraName,
        cacheSalt: hints.cacheSalt,
        sessionId: hints.sessionId,
        parentSessionId: hints.parentSessionId,
        isSessionEnd: hints.isSessionEnd,
        tokens: prompt.tokens,
        marks: prompt.marks,
        reasoning: prompt.reasoning,
        decision,
      });
    }
  }
}
