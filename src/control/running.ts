import type { Receipt } from "./receipt.ts";
import type { Refusal } from "./refusals.ts";

/** A command at work. */
export interface Running {
  /** As `scopeOf` tells it, here and wherever an issuer is asked for. */
  readonly issuer: string;
  readonly id: string | null;
  /** Of what it asks for; null where it has no id. */
  readonly digest: string | null;
  readonly blocks: number;
  /** Never rejects. */
  readonly receipt: Promise<Receipt>;
  /** How far it is. */
  now(): Receipt;
}

const COMMANDS_MAX = 1_024;
/** One issuer leaves room for others. */
const COMMANDS_OF_ONE_MAX = 768;
const BLOCKS_MAX = 4 * 2 ** 20;
/** Repetitions that wait for a command at work. */
const WAITERS_MAX = 8_192;

/** The commands at work, bounded: what is beyond is refused. */
export class RunningCommands {
  readonly #all = new Set<Running>();
  readonly #named = new Map<string, Running>();
  /** Of those with the same id the latest. */
  readonly #ofId = new Map<string, Running>();
  readonly #ofIssuer = new Map<string, number>();
  #blocks = 0;
  #waiters = 0;

  get size(): number {
    return this.#all.size;
  }

  /** Why a command has no room; null where it has. */
  refusal(issuer: string, blocks: number): Refusal | null {
    const busy = (words: string): Refusal => ({ word: "busy", words });
    const own = this.#ofIssuer.get(issuer) ?? 0;
    if (this.#all.size >= COMMANDS_MAX) return busy(`${COMMANDS_MAX} commands are at work`);
    if (own >= COMMANDS_OF_ONE_MAX) return busy(`${own} commands of this issuer are at work`);
    // A single one always fits.
    if (this.#blocks > 0 && this.#blocks + blocks > BLOCKS_MAX) {
      return busy(`commands on ${this.#blocks} blocks are at work`);
    }
    return null;
  }

  add(running: Running): void {
    const { issuer, id, blocks } = running;
    this.#all.add(running);
    this.#blocks += blocks;
    this.#ofIssuer.set(issuer, (this.#ofIssuer.get(issuer) ?? 0) + 1);
    if (id === null) return;
    this.#named.set(`${issuer}\0${id}`, running);
    this.#ofId.set(id, running);
  }

  remove(running: Running): void {
    const { issuer, id, blocks } = running;
    this.#all.delete(running);
    this.#blocks -= blocks;
    const left = this.#ofIssuer.get(issuer)! - 1;
    if (left === 0) this.#ofIssuer.delete(issuer);
    else this.#ofIssuer.set(issuer, left);
    if (id === null) return;
    this.#named.delete(`${issuer}\0${id}`);
    if (this.#ofId.get(id) !== running) return;
    this.#ofId.delete(id);
    // Fewer ids than commands with one: issuers share some.
    if (this.#ofId.size === this.#named.size) return;
    for (const other of this.#named.values()) if (other.id === id) this.#ofId.set(id, other);
  }

  get(issuer: string, id: string): Running | null {
    return this.#named.get(`${issuer}\0${id}`) ?? null;
  }

  /** Of whatever issuer, the latest. */
  find(id: string): Running | null {
    return this.#ofId.get(id) ?? null;
  }

  /** The receipt of a command at work, for a repetition; null where too many wait already. */
  wait(running: Running): Promise<Receipt> | null {
    if (this.#waiters >= WAITERS_MAX) return null;
    this.#waiters++;
    return running.receipt.finally(() => this.#waiters--);
  }

  /** Resolves when none is at work. */
  async idle(): Promise<void> {
    while (this.#all.size > 0) await Promise.all([...this.#all].map(({ receipt }) => receipt));
  }
}
