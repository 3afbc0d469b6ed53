import type { Clock } from "../../core/index.ts";
import type { WorkerTable } from "../index.ts";
import { refuse, unknownModel } from "./answers.ts";
import { ownHeaders } from "./headers.ts";
import type { ModelNames } from "./model-names.ts";
import type { ProxySettings } from "./settings.ts";
import { readAll, type Upstream } from "./upstream/index.ts";
import { addressAt } from "./worker-url.ts";

type Card = Readonly<Record<string, unknown>>;

/** A worker that has not told its models by then is described by what we know. */
const ASK_MS = 2_000;
/** What workers said of their models is not asked for again for so long. */
const KEPT_MS = 30_000;
const ANSWER_BYTES_MAX = 1024 * 1024;
const CARDS_MAX = 4_096;

export interface ModelListParts {
  readonly clock: Clock;
  readonly table: WorkerTable;
  readonly settings: ProxySettings;
  readonly upstream: Upstream;
}

/**
 * `GET /v1/models`: what workers say of the models that the router can send requests to. All
 * clients see the same cards, so workers are asked without any client's credentials.
 */
export class ModelList {
  readonly #parts: ModelListParts;
  /** By model id, as one of its workers wrote them. */
  readonly #cards = new Map<string, { readonly card: Card; readonly atMs: number }>();

  constructor(parts: ModelListParts) {
    this.#parts = parts;
  }

  /** All of them, or the one with that id. */
  async answer(id: string | null, names: ModelNames, signal: AbortSignal): Promise<Response> {
    const known = names.list();
    const wanted = id === null ? known : known.filter((one) => one.id === id);
    if (id !== null && wanted.length === 0) return refuse(unknownModel(id));
    await this.#refresh(signal);
    const cards = wanted.map(({ id: name, parent }) => this.#cardOf(name, parent));
    return Response.json(id === null ? { object: "list", data: cards } : cards[0]);
  }

  #cardOf(id: string, parent: string | null): Card {
    const told = this.#cards.get(id)?.card;
    return told ?? { id, object: "model", created: 0, owned_by: "hearth", root: id, parent };
  }

  /** Asks one worker of each model of which nothing recent is known. */
  async #refresh(signal: AbortSignal): Promise<void> {
    const oldest = this.#parts.clock.monotonicMs() - KEPT_MS;
    const urls = new Map<string, string>();
    for (const { model, url, state } of this.#parts.table.targets) {
      if (url === null || state === "gone" || urls.has(model)) continue;
      const known = this.#cards.get(model);
      if (known === undefined || known.atMs < oldest) urls.set(model, url);
    }
    const asked = [...new Set(urls.values())];
    await Promise.all(asked.map((url) => this.#ask(url, signal)));
  }

  async #ask(url: string, signal: AbortSignal): Promise<void> {
    const { upstream, settings, clock } = this.#parts;
    const headers = ownHeaders(settings.authorization);
    const limits = { connectMs: ASK_MS, firstByteMs: ASK_MS, idleMs: ASK_MS };
    const order = { method: "GET", url: addressAt(url, "/v1/models"), body: null } as const;
    const answer = await upstream.open({ ...order, headers, ...limits }, signal);
    if (answer.kind === "failed") return;
    const text = await readAll(answer, ANSWER_BYTES_MAX);
    if (text === null || answer.status !== 200) return;
    const atMs = clock.monotonicMs();
    for (const card of cardsOf(text)) {
      if (this.#cards.size < CARDS_MAX) this.#cards.set(String(card.id), { card, atMs });
    }
  }
}

function cardsOf(text: string): Card[] {
  try {
    const { data } = JSON.parse(text) as { data?: unknown };
    return Array.isArray(data) ? data.filter((card) => typeof card?.id === "string") : [];
  } catch {
    return [];
  }
}
