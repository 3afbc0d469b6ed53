import type { WorkerTable } from "../index.ts";
import { refuse, unknownModel } from "./answers.ts";
import type { ProxyParts } from "./exchange.ts";
import type { ProxyOptions } from "./proxy.ts";
import { type Fields, fieldsIn, isFields } from "./request-body.ts";
import { PROXY_MODEL_DEFAULTS, type ProxyModel } from "./settings.ts";
import { checkTokenModel, type TokenModelFiles, Tokens } from "./tokens/index.ts";
import { getText } from "./upstream.ts";

type Card = Fields;

/** Time in ms to wait for a worker's model list. After it, the proxy describes the model itself. */
const LIST_TIMEOUT_MS = 2_000;
/** Time in ms for which a worker's model list is cached. */
const CARD_TTL_MS = 30_000;
const ANSWER_BYTES_MAX = 1024 * 1024;
const CARDS_MAX = 4_096;

/**
 * Answers `GET /v1/models` with the models that the router can reach, as their workers describe
 * them. All clients see the same answer, so the proxy sends no client's credentials to the workers.
 */
export class ModelList {
  readonly #parts: ProxyParts;
  /** Model descriptions by model id, as received from one of the model's workers. */
  readonly #cards = new Map<string, { readonly card: Card; readonly atMs: number }>();

  constructor(parts: ProxyParts) {
    this.#parts = parts;
  }

  /** Answers with all models, or with the model `id`. */
  async answer(id: string | null, names: ModelNames, signal: AbortSignal): Promise<Response> {
    const known = names.list();
    const wanted = id === null ? known : known.filter((one) => one.id === id);
    if (id !== null && wanted.length === 0) return refuse(unknownModel(id));
    await this.#refresh(signal);
    const cards = wanted.map(({ id: name, parent }) => this.#cardOf(name, parent));
    return Response.json(id === null ? { object: "list", data: cards } : cards[0]);
  }

  #cardOf(id: string, parent: string | null): Card {
    const reported = this.#cards.get(id)?.card;
    return reported ?? { id, object: "model", created: 0, owned_by: "hearth", root: id, parent };
  }

  /** Requests the model list from one worker of each model that has no recent description. */
  async #refresh(signal: AbortSignal): Promise<void> {
    const oldest = this.#parts.clock.monotonicMs() - CARD_TTL_MS;
    const urls = new Map<string, string>();
    for (const { model, url, state } of this.#parts.table.targets) {
      if (url === null || state === "gone" || urls.has(model)) continue;
      const known = this.#cards.get(model);
      if (known === undefined || known.atMs < oldest) urls.set(model, url);
    }
    const incoming = [...new Set(urls.values())];
    await Promise.all(incoming.map((url) => this.#ask(url, signal)));
  }

  async #ask(url: string, signal: AbortSignal): Promise<void> {
    const { upstream, settings, clock } = this.#parts;
    const { authorization } = settings;
    const of = { authorization, timeoutMs: LIST_TIMEOUT_MS, bytesMax: ANSWER_BYTES_MAX };
    const got = await getText(upstream, { url, path: "/v1/models", ...of }, signal);
    if (got.kind === "failed" || got.status !== 200) return;
    const atMs = clock.monotonicMs();
    for (const card of cardsOf(got.text)) {
      if (this.#cards.size < CARDS_MAX) this.#cards.set(String(card.id), { card, atMs });
    }
  }
}

function cardsOf(text: string): Card[] {
  const data = fieldsIn(text)?.data;
  if (!Array.isArray(data)) return [];
  return data.filter((card) => isFields(card) && typeof card.id === "string") as Card[];
}

/** Model and adapter that a client's `model` field refers to. */
export interface NamedModel {
  /** Model name under which workers are registered. */
  readonly base: string;
  readonly loraName: string | null;
  readonly model: ProxyModel;
}

/** Resolves the names of models and their adapters. */
export class ModelNames {
  readonly #table: WorkerTable;
  readonly #models: ReadonlyMap<string, ProxyModel>;
  readonly #adapters: ReadonlyMap<string, ProxyModel>;

  constructor(table: WorkerTable, models: readonly ProxyModel[]) {
    this.#table = table;
    this.#models = new Map(models.map((model) => [model.name, model]));
    this.#adapters = new Map(models.flatMap((model) => model.loras.map((lora) => [lora, model])));
  }

  /**
   * Returns the model of requests that name none: the only one served. Null if there are several or
   * none.
   */
  only(): NamedModel | null {
    const [name, ...others] = new Set(this.#served().map(({ model }) => model));
    if (name === undefined || others.length > 0) return null;
    return { base: name, loraName: null, model: this.#modelOf(name) };
  }

  /** Finds a model by name. Returns null if no worker serves it and it is not configured. */
  find(name: string, loraPath: unknown): NamedModel | null {
    const loraName = typeof loraPath === "string" && loraPath !== "" ? loraPath : null;
    if (this.#isServed(name) || this.#models.has(name)) {
      return { base: name, loraName, model: this.#modelOf(name) };
    }
    const adapted = this.#adapters.get(name);
    if (adapted !== undefined) return { base: adapted.name, loraName: name, model: adapted };
    return this.#withSuffix(name);
  }

  /**
   * Returns all names that clients may request. An adapter is listed with its model as `parent`.
   */
  list(): { readonly id: string; readonly parent: string | null }[] {
    const served = new Set(this.#served().map((target) => target.model));
    const adapters = [...this.#adapters].filter(([, model]) => served.has(model.name));
    return [
      ...[...served].map((id) => ({ id, parent: null })),
      ...adapters.map(([id, model]) => ({ id, parent: model.name })),
    ];
  }

  /** Resolves SGLang's form of an adapter name, `model:adapter`. */
  #withSuffix(name: string): NamedModel | null {
    const colon = name.lastIndexOf(":");
    const base = name.slice(0, Math.max(0, colon));
    if (base === "" || !this.#isServed(base)) return null;
    return { base, loraName: name.slice(colon + 1), model: this.#modelOf(base) };
  }

  #modelOf(name: string): ProxyModel {
    return this.#models.get(name) ?? { name, ...PROXY_MODEL_DEFAULTS };
  }

  #served() {
    return this.#table.targets.filter(({ url, state }) => url !== null && state !== "gone");
  }

  #isServed(name: string): boolean {
    return this.#served().some(({ model }) => model === name);
  }
}

/** Separator that each engine puts between the text parts of one message. */
const PART_SEPARATORS = { vllm: "\n", sglang: " " } as const;

/** Loads the tokenizers of models. Rejects with CONFIG_INVALID if one cannot be used. */
export function tokensFor(
  { clock, settings, onTokens }: Pick<ProxyOptions, "clock" | "settings" | "onTokens">,
  models: readonly ProxyModel[],
): Promise<Tokens> {
  return Tokens.open({
    clock,
    models: tokenFiles(models),
    onFailed: (model, why) => onTokens?.failed(model, why),
    threads: settings.tokenThreads,
    cacheTokens: settings.tokenCacheTokens,
    timeMs: settings.tokeniseMs,
  });
}

/**
 * Checks the tokenizer files of models. Throws CONFIG_INVALID with a file's name if it cannot be
 * used.
 */
export function checkModels(models: readonly ProxyModel[]): void {
  for (const files of tokenFiles(models)) checkTokenModel(files);
}

function tokenFiles(models: readonly ProxyModel[]): TokenModelFiles[] {
  return models.flatMap(({ name, tokenizer, chatTemplate, engine, reasoning, templateKwargs }) => {
    if (tokenizer === null) return [];
    const partSeparator = PART_SEPARATORS[engine];
    return [{ name, tokenizer, chatTemplate, reasoning, templateKwargs, partSeparator }];
  });
}
