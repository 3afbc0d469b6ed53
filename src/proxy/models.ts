import type { Clock } from "../core/index.ts";
import type { WorkerTable } from "../router/index.ts";
import { refuse, unknownModel } from "./answers.ts";
import { towardsWorker } from "./headers.ts";
import type { ModelNames } from "./model-names.ts";
import type { ProxySettings } from "./settings.ts";
import type { Upstream } from "./upstream/index.ts";

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

/** `GET /v1/models`: what workers say of the models that the router can send requests to. */
export class ModelList {
  readonly #parts: ModelListParts;
  /** By model id, as one of its workers wrote them. */
  readonly #cards = new Map<string, { readonly card: Card; readonly atMs: number }>();

  constructor(parts: ModelListParts) {
    this.#parts = parts;
  }

  /** All of them, or the one with that id. */
  async answer(id: string | null, names: ModelNames, request: Request): Promise<Response> {
    const known = names.list();
    const wanted = id === null ? known : known.filter((one) => one.id === id);
    if (id !== null && wanted.length === 0) return refuse(unknownModel(id));
    await this.#refresh(request.headers, request.signal);
    const cards = wanted.map(({ id: name, parent }) => this.#cardOf(name, parent));
    return Response.json(id === null ? { object: "list", data: cards } : cards[0]);
  }

  #cardOf(id: string, parent: string | null): Card {
    const told = this.#cards.get(id)?.card;
    return told ?? { id, object: "model", created: 0, owned_by: "hearth", root: id, parent };
  }

  /** Asks one worker of each model of which nothing recent is known. */
  async #refresh(headers: Headers, signal: AbortSignal): Promise<void> {
    const oldest = this.#parts.clock.monotonicMs() - KEPT_MS;
    const urls = new Map<string, string>();
    for (const { model, url, state } of this.#parts.table.targets) {
      if (url === null || state === "gone" || urls.has(model)) continue;
      const known = this.#cards.get(model);
      if (known === undefined || known.atMs < oldest) urls.set(model, url);
    }
    const asked = [...new Set(urls.values())];
    await Promise.all(asked.map((url) => this.#ask(url, headers, signal)));
  }

  async #ask(url: string, headers: Headers, signal: AbortSignal): Promise<void> {
    const { upstream, settings, clock } = this.#parts;
    const sent = towardsWorker(headers, settings.authorization);
    sent.delete("accept-encoding");
    const limits = { connectMs: ASK_MS, firstByteMs: ASK_MS, idleMs: ASK_MS };
    const address = `${url.replace(/\/+$/, "").replace(/\/v1$/, "")}/v1/models`;
    const order = { method: "GET", url: address, headers: sent, body: null, ...limits } as const;
    const answer = await upstream.open(order, signal);
    if (answer.kind === "failed") return;
    const parts: Uint8Array[] = [];
    let length = 0;
    for (let piece = await answer.read(); piece.kind !== "end"; piece = await answer.read()) {
      if (piece.kind === "failed") return;
      length += piece.bytes.length;
      if (length > ANSWER_BYTES_MAX) return answer.close();
      parts.push(piece.bytes);
    }
    if (answer.status !== 200) return;
    const atMs = clock.monotonicMs();
    for (const card of cardsOf(Buffer.concat(parts).toString("utf8"))) {
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
