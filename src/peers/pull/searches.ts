import { assert, unreachable } from "../../core/index.ts";
import type { Flight } from "./flight.ts";
import type { Peers } from "./peers.ts";
import type { Questions } from "./questions.ts";
import type { Room } from "./room.ts";

/** The router and other hosts are waited for so long, and no longer than half of what is left. */
const LOCATE_MS = 250;
/** Where an engine waits. */
const LOCATE_SOON_MS = 25;
const ASK_MS = 250;
/** A router that did not answer within a decent time is left alone for so long. */
const LOCATE_DECENT_MS = 200;
const LOCATE_PAUSE_MS = 5_000;
/** Hosts that are asked about a block of which nothing is known. */
const ASKED_MAX = 16;

interface Round {
  readonly flights: Flight[];
  readonly done: Promise<void>;
}

/**
 * Who may have a block, in three steps, each only when all who were named before could not help:
 * the router's word, then what is known of other hosts, then a question to each of them.
 */
export class Searches {
  readonly #room: Room;
  readonly #peers: Peers;
  readonly #questions: Questions;
  readonly #stop = new AbortController();
  #round: Round | null = null;
  #pausedUntilMs = Number.NEGATIVE_INFINITY;

  constructor(room: Room, peers: Peers, questions: Questions) {
    this.#room = room;
    this.#peers = peers;
    this.#questions = questions;
  }

  /** Takes the next step for this block. Its candidates are more then, or not. */
  async step(flight: Flight): Promise<void> {
    const { search } = flight;
    switch (search) {
      case "located":
        flight.search = "known";
        return await this.#locate(flight);
      case "known":
        flight.search = "asked";
        return this.#know(flight);
      case "asked":
        flight.search = "over";
        return await this.#ask(flight);
      case "over":
        return;
      default:
        unreachable(search, "search");
    }
  }

  /** Whether `step` has its answer at once. */
  isReady(flight: Flight): boolean {
    const { search } = flight;
    return search === "known" || (search === "located" && !this.#mayLocate());
  }

  close(): void {
    this.#stop.abort();
  }

  #know(flight: Flight): void {
    const holders = this.#room.parts.whereabouts.holders(flight.namespaceKey, flight.keyBytes, 0);
    if (flight.offer(holders)) flight.trace.step(`known: ${holders.join(", ")}`);
  }

  #mayLocate(): boolean {
    const { locator, clock } = this.#room.parts;
    return locator !== null && clock.monotonicMs() >= this.#pausedUntilMs;
  }

  /** What wants to know it in the same turn of the loop is one question for each namespace. */
  async #locate(flight: Flight): Promise<void> {
    if (!this.#mayLocate()) return;
    if (this.#round === null) {
      const flights: Flight[] = [];
      const done = Promise.resolve().then(async () => {
        this.#round = null;
        const named = Map.groupBy(flights, (one) => one.namespace);
        await Promise.all([...named.values()].map((some) => this.#locateAll(some)));
      });
      this.#round = { flights, done };
    }
    this.#round.flights.push(flight);
    await this.#round.done;
  }

  async #locateAll(flights: readonly Flight[]): Promise<void> {
    const { locator, clock } = this.#room.parts;
    assert(locator !== null, "a router to ask");
    const keys = flights.map((flight) => flight.keyBytes);
    const isUrgent = flights.some(({ priority }) => priority === "acquire");
    const longestMs = isUrgent ? LOCATE_SOON_MS : LOCATE_MS;
    const ms = Math.min(longestMs, this.#halfOfRest(flights));
    const [{ namespaceKey }] = flights as readonly [Flight];
    const located = await locator.locate(namespaceKey, keys, ms, this.#stop.signal);
    if (located === null && ms >= LOCATE_DECENT_MS)
      this.#pausedUntilMs = clock.monotonicMs() + LOCATE_PAUSE_MS;
    for (const [index, flight] of flights.entries()) {
      const workers = located?.[index] ?? [];
      if (flight.offer(workers)) flight.trace.step(`router: ${workers.join(", ")}`);
    }
  }

  /** Engines do not wait for this: what is not known to be anywhere is computed sooner. */
  async #ask(flight: Flight): Promise<void> {
    if (flight.priority === "acquire") return;
    const ms = Math.min(ASK_MS, this.#halfOfRest([flight]));
    const asked = this.#peers
      .within(flight.namespaceKey.toHex())
      .filter(({ worker }) => !flight.candidates.includes(worker))
      .slice(0, ASKED_MAX);
    const answers = await Promise.all(
      asked.map(async (peer) => [peer, await this.#questions.has(peer, flight, ms)] as const),
    );
    for (const [peer, has] of answers) {
      if (has === null || has.tiers === 0) continue;
      flight.measure(has);
      flight.offer([peer.worker]);
    }
    flight.trace.step(`asked ${asked.length} others`);
  }

  #halfOfRest(flights: readonly Flight[]): number {
    const untilMs = Math.max(...flights.map((flight) => flight.deadlineMs));
    return Math.max((untilMs - this.#room.parts.clock.monotonicMs()) / 2, 1);
  }
}
