import { BodyBudget, type BodyShare } from "../../core/http/index.ts";
import type { Clock, Random, WorkerId } from "../../core/index.ts";
import type { RouteDecision, Router, WorkerTable } from "../index.ts";
import { busy, invalid, ownFault, type ProxyError, refuse, unknownModel } from "./answers.ts";
import { ProxyCounts, type ProxySnapshot, shapeHash, type TokenDifference } from "./counts.ts";
import { Dispatch, type DispatchParts, type Won } from "./dispatch.ts";
import { type Endpoint, type EndpointSpec, endpointOf, shapeOf } from "./endpoint.ts";
import { type ProxyRequest, RequestTracker, wantsUsage } from "./exchange.ts";
import { unsendableHeader } from "./headers.ts";
import { type Hints, hintsOf } from "./hints.ts";
import { ModelList, ModelNames, type NamedModel, tokensFor } from "./models.ts";
import type { ProxyObserver, RequestEnd } from "./observer.ts";
import { Prompts } from "./prompt.ts";
import { Relay } from "./relay.ts";
import {
  hashOf,
  type RequestBody,
  type RequestBodyLimits,
  readRequestBody,
} from "./request-body.ts";
import type { ProxyModel, ProxySettings } from "./settings.ts";
import { ResponseHomes, SidePaths } from "./side-paths.ts";
import type { Tokens } from "./tokens/index.ts";
import { Upstream } from "./upstream.ts";
import { DownWorkers, WorkerHealth } from "./worker-health.ts";
import { OutputWatch } from "./worker-output.ts";

export interface ProxyOptions {
  readonly clock: Clock;
  readonly random: Random;
  readonly router: Router;
  readonly table: WorkerTable;
  readonly settings: ProxySettings;
  /** Called with exceptions that are faults of the proxy itself. */
  readonly onFault: (thrown: unknown) => void;
  /**
   * Called with the reason if a worker is excluded because of its health, and with null if the
   * proxy uses the worker again.
   */
  readonly onWorker?: (worker: WorkerId, why: string | null) => void;
  /** Called if this process has no free file descriptor for a connection to a worker. */
  readonly onShort?: () => void;
  /**
   * `failed`: called if a prompt could not be tokenised. `differ`: called if an engine counted a
   * different number of tokens.
   */
  readonly onTokens?: {
    failed(model: string, why: string): void;
    differ(difference: TokenDifference): void;
  };
}

/** Callback of the server that received the request. */
export interface ProxyCaller {
  /**
   * Called when the whole body has arrived. Computing the answer may take any time from then on.
   */
  readonly onBody?: () => void;
}

/** Serves the APIs of OpenAI, Anthropic and vLLM by forwarding requests to a router's workers. */
export class OpenAiProxy implements AsyncDisposable {
  readonly #options: ProxyOptions;
  readonly #upstream: Upstream;
  #tokens: Tokens;
  #prompts: Prompts;
  #names: ModelNames;
  readonly #models: ModelList;
  readonly #counts = new ProxyCounts();
  readonly #observers = new Set<ProxyObserver>();
  readonly #dispatch: DispatchParts;
  readonly #health: WorkerHealth;
  readonly #homes = new ResponseHomes();
  readonly #side: SidePaths;
  readonly #bodies: RequestBodyLimits;
  /** Prefix of this proxy's request ids, unique to this run. */
  readonly #prefix: string;
  readonly #active = new Map<string, AbortController>();
  #nextId = 1;
  #isDraining = false;

  private constructor(options: ProxyOptions, tokens: Tokens) {
    const { settings, random, clock, onWorker = () => undefined } = options;
    const { bodyBytesMax: bytesMax, bodyTimeoutMs: timeoutMs, bodyBudgetBytes } = settings;
    const upstream = new Upstream(clock, options.onShort);
    const [counts, homes, down] = [this.#counts, this.#homes, new DownWorkers(clock)];
    const parts = { ...options, upstream, counts, homes, down };
    [this.#options, this.#tokens, this.#upstream] = [options, tokens, upstream];
    this.#prompts = new Prompts(tokens);
    this.#prefix = random.u32().toString(16).padStart(8, "0");
    this.#names = new ModelNames(options.table, settings.models);
    this.#models = new ModelList(parts);
    const budget = new BodyBudget(bodyBudgetBytes, clock);
    this.#bodies = { bytesMax, timeoutMs, clock, budget, ...settings };
    this.#health = new WorkerHealth(parts, (worker, why) => {
      if (why === null) down.worked(worker);
      onWorker(worker, why);
    });
    this.#side = new SidePaths(parts, this.#health);
    this.#dispatch = {
      ...{ ...parts, health: this.#health },
      onUnsendable: (worker, why) => {
        options.onFault(new Error(`a request to ${worker} could not be sent: ${why}`));
      },
      onRouted: (incoming, decision) => this.#routed(incoming, decision),
    };
  }

  /**
   * Opens the proxy and loads the tokenizers. Rejects with CONFIG_INVALID if one cannot be used.
   */
  static async open(options: ProxyOptions): Promise<OpenAiProxy> {
    return new OpenAiProxy(options, await tokensFor(options, options.settings.models));
  }

  /**
   * Answers a request. Never rejects. `request` must be the server's own object with its body
   * unread, because its signal reports that the client disconnected. The server must allow long
   * silences: engines send nothing while they compute a prompt.
   */
  async fetch(request: Request, caller: ProxyCaller = {}): Promise<Response> {
    const { method, url, headers } = request;
    const endpoint = endpointOf(method, url);
    const shape = shapeOf(url);
    if (endpoint === "unknown") return refuse(invalid("Unknown path.", undefined, 404), shape);
    if (endpoint === "method") {
      const why = `The method ${method} is not allowed for this path.`;
      return refuse(invalid(why, undefined, 405), shape);
    }
    const name = unsendableHeader(headers);
    if (name !== null) {
      const why = `The header ${name} contains a character that HTTP does not allow.`;
      return refuse(invalid(why), shape);
    }
    try {
      return await this.#answer(endpoint, request, caller);
    } catch (thrown) {
      this.#options.onFault(thrown);
      return refuse(ownFault("Internal error of the proxy; see its log."), shape);
    }
  }

  /**
   * Replaces the models and rereads their files. Requests in progress use the previous models. If a
   * tokenizer cannot be used, rejects with CONFIG_INVALID and changes nothing.
   */
  async setModels(models: readonly ProxyModel[]): Promise<void> {
    const tokens = await tokensFor(this.#options, models);
    this.#tokens[Symbol.dispose]();
    this.#tokens = tokens;
    this.#prompts = new Prompts(tokens);
    this.#names = new ModelNames(this.#options.table, models);
    if (this.#isDraining) tokens[Symbol.dispose]();
  }

  /**
   * Rejects new requests from now on with the status for busy workers. Requests in progress
   * continue.
   */
  drain(): void {
    this.#isDraining = true;
  }

  listen(observer: ProxyObserver): Disposable {
    this.#observers.add(observer);
    return { [Symbol.dispose]: () => void this.#observers.delete(observer) };
  }

  snapshot(): ProxySnapshot {
    return {
      ...structuredClone(this.#counts),
      active: this.#active.size,
      workersOut: this.#health.out.size,
      timesOut: this.#health.times,
      pulses: this.#health.pulses,
      tokens: this.#tokens.counts,
    };
  }

  /**
   * Closes the proxy and cuts off answers in progress. To let them finish, wait until `active` is 0
   * before.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#isDraining = true;
    for (const controller of this.#active.values()) controller.abort();
    await this.#health[Symbol.asyncDispose]();
    this.#tokens[Symbol.dispose]();
    this.#upstream[Symbol.dispose]();
  }

  #answer(endpoint: Endpoint, request: Request, caller: ProxyCaller): Promise<Response> {
    switch (endpoint.kind) {
      case "ask":
        return this.#ask(endpoint, request, caller);
      case "models":
        return this.#models.answer(endpoint.id, this.#names, request.signal);
      case "health":
        return Promise.resolve(this.#side.health(this.#isDraining));
      case "load":
        // In vLLM's `/load`, `server_load` is the number of requests in progress.
        return Promise.resolve(Response.json({ server_load: this.#active.size }));
      case "version":
        return this.#side.version(endpoint.path, request.signal);
      case "stored":
        return this.#side.stored(endpoint, request);
      default:
        return endpoint satisfies never;
    }
  }

  async #ask(
    endpoint: Extract<Endpoint, { kind: "ask" }>,
    request: Request,
    { onBody }: ProxyCaller,
  ): Promise<Response> {
    const { settings } = this.#options;
    if (this.#isDraining || this.#active.size >= settings.streamsMax) {
      this.#counts.outcomes.busy++;
      const why = this.#isDraining
        ? "The proxy is shutting down."
        : "Too many requests are in flight.";
      const error = busy(why, settings.busyStatus, settings.retryAfterSeconds);
      return refuse(error, endpoint.spec.shape);
    }
    const id = `${this.#prefix}-${this.#nextId++}`;
    const controller = new AbortController();
    this.#active.set(id, controller);
    const tracker = new RequestTracker(id, this.#options.router, this.#observers);
    const onAbort = () => controller.abort();
    request.signal.addEventListener("abort", onAbort, { once: true });
    if (request.signal.aborted) onAbort();
    let isPassedOn = false;
    const ended = (end: RequestEnd) => {
      request.signal.removeEventListener("abort", onAbort);
      this.#active.delete(id);
      tracker.end(end);
    };
    // The body is needed only until a worker has begun to answer.
    using share = this.#bodies.budget.open();
    try {
      const incoming = await this.#read(endpoint, { request, share }, tracker, controller.signal);
      onBody?.();
      if ("status" in incoming) {
        this.#counts.outcomes.refused++;
        return refuse(incoming, endpoint.spec.shape);
      }
      const dispatched = await new Dispatch(this.#dispatch, incoming).run();
      if (dispatched.kind !== "won") return this.#lost(dispatched, incoming.spec);
      isPassedOn = true;
      return this.#pass(incoming, dispatched, ended);
    } finally {
      if (!isPassedOn) ended({ how: "refused", outputTokens: 0 });
    }
  }

  /**
   * Reads a request and everything needed to route it. Returns an error if the request is invalid.
   */
  async #read(
    { spec, path }: Extract<Endpoint, { kind: "ask" }>,
    { request, share }: { readonly request: Request; readonly share: BodyShare },
    tracker: RequestTracker,
    signal: AbortSignal,
  ): Promise<ProxyRequest | ProxyError> {
    const { settings } = this.#options;
    const body = await readRequestBody(request, this.#bodies, share);
    if ("status" in body) return body;
    const named = this.#named(body);
    if ("status" in named) return named;
    const { headers } = request;
    const hints = this.#atHome(hintsOf(headers, body.fields, settings.clientsMayRoute), body);
    const prompt = await this.#prompts.of(spec, body, named.model);
    return { spec, path, headers, body, named, hints, prompt, tracker, signal };
  }

  #named({ model, fields }: RequestBody): NamedModel | ProxyError {
    if (model !== null) return this.#names.find(model, fields.lora_path) ?? unknownModel(model);
    const only = this.#names.only();
    return (
      only ??
      invalid("`model` is required, since the proxy does not serve exactly one model.", "model")
    );
  }

  /** Restricts a request that continues a stored response to the worker that has the response. */
  #atHome(hints: Hints, { fields }: RequestBody): Hints {
    const worker = this.#homes.of(fields.previous_response_id);
    if (worker === null || hints.overrides.worker !== undefined) return hints;
    if (!this.#options.table.targets.some((target) => target.worker === worker)) return hints;
    return { ...hints, overrides: { ...hints.overrides, worker } };
  }

  #lost(
    lost: Exclude<Awaited<ReturnType<Dispatch["run"]>>, Won>,
    { shape }: Pick<EndpointSpec, "shape">,
  ): Response {
    const { outcomes } = this.#counts;
    if (lost.kind === "left") {
      outcomes.client_left++;
      // The client has disconnected and will not read this answer.
      return new Response(null, { status: 499 });
    }
    outcomes[lost.outcome]++;
    return refuse(lost.error, shape);
  }

  #pass(incoming: ProxyRequest, won: Won, ended: (end: RequestEnd) => void): Response {
    const { tracker, named, body, spec } = incoming;
    const { worker } = won.decision.target;
    if (spec.prompt === "responses" && won.first.kind === "bytes") {
      this.#homes.note(won.first.bytes, worker);
    }
    const isWatched = [...this.#observers].some(({ answered }) => answered !== undefined);
    const watch = isWatched && won.answer.status === 200 ? new OutputWatch(body.isStream) : null;
    const relay = new Relay({
      won,
      tracker,
      headers: this.#options.settings.showsWorker
        ? [
            ["x-hearth-request-id", tracker.id],
            ["x-hearth-worker", worker],
          ]
        : [],
      shape: spec.shape,
      watch,
      hidesUsage: wantsUsage(incoming),
      ended: ({ promptTokens, ...end }) => {
        this.#compare(incoming, promptTokens);
        this.#dispatch.down.ended(worker, hashOf(body), end.how, won.answer.status);
        const outcome = end.how === "client" ? "client_left" : "worker_failed";
        this.#counts.outcomes[end.how === "done" ? "done" : outcome]++;
        this.#counts.outputTokens += end.outputTokens;
        if (watch === null || end.how !== "done") return ended(end);
        void this.#answered(named.model.name, tracker, watch).finally(() => ended(end));
      },
    });
    return relay.respond();
  }

  /**
   * Compares the proxy's prompt token count with the engine's `usage.prompt_tokens`, and counts the
   * result.
   */
  #compare({ named, prompt, body }: ProxyRequest, engine: number | null): void {
    if (engine === null || prompt.tokens === null || !prompt.isCountKnown) return;
    const { length: here } = prompt.tokens;
    const { checks } = this.#counts;
    if (here === engine) {
      checks.equal++;
      return;
    }
    checks.different++;
    const shape = shapeHash(body.fields);
    this.#options.onTokens?.differ({ model: named.model.name, here, engine, shape });
  }

  /**
   * Passes the output tokens to observers. The caller frees the request in the router afterwards.
   */
  async #answered(model: string, tracker: RequestTracker, watch: OutputWatch): Promise<void> {
    const output = await watch.tokens(model, this.#tokens, this.#tokens.reasoning(model));
    if (output === null) return;
    for (const observer of this.#observers) observer.answered?.(tracker.id, output);
  }

  #routed({ tracker, named, hints, prompt }: ProxyRequest, decision: RouteDecision): void {
    for (const observer of this.#observers) {
      observer.prompt?.({
        requestId: tracker.id,
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
