import { type Random, randomBelow } from "../../src/core/index.ts";
import { BLOCKS, digestOf } from "./content.ts";
import type { Oracle } from "./oracle.ts";
import type { Tally } from "./tally.ts";

const PURGED_MAX = 6;

/** Somebody with the HTTP API: purges and persists. */
export class CrashOperator {
  readonly #url: string;
  readonly #oracle: Oracle;
  readonly #tally: Tally;
  readonly #random: Random;

  constructor(url: string, parts: { oracle: Oracle; tally: Tally; random: Random }) {
    this.#url = url;
    this.#oracle = parts.oracle;
    this.#tally = parts.tally;
    this.#random = parts.random;
  }

  async #post<T>(path: string, body: object | null): Promise<T> {
    const response = await fetch(this.#url + path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      keepalive: false,
      ...(body === null ? {} : { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${path} answered ${response.status}: ${text}`);
    return JSON.parse(text) as T;
  }

  async purge(): Promise<void> {
    const count = 1 + randomBelow(this.#random, PURGED_MAX);
    const ids = new Set(Array.from({ length: count }, () => randomBelow(this.#random, BLOCKS)));
    const purge = this.#oracle.purgeSent([...ids]);
    const blocks = purge.ids.map((id) => ({ digest: digestOf(id).toHex() }));
    const { outcomes } = await this.#post<{ outcomes: string[] }>("/v1/purge", { blocks });
    const isGone = (at: number) => outcomes[at] === "done" || outcomes[at] === "missing";
    this.#oracle.purgeAnswered(purge, isGone);
    this.#tally.purges += outcomes.filter((outcome) => outcome === "done").length;
  }

  /** `keeps`: whether what is there stays there. */
  async persist(keeps: boolean): Promise<void> {
    const persist = this.#oracle.persistSent();
    type Report = { skipped: number; durable: boolean };
    const { skipped, durable } = await this.#post<Report>("/v1/persist", null);
    if (!durable || skipped > 0 || !keeps) return;
    this.#oracle.persistAnswered(persist);
    this.#tally.persists++;
  }
}
