import type { NamespaceIndex } from "../../core/index.ts";
import type { Ask } from "./ask.ts";
import type { Peer } from "./peer.ts";
import { PULL_PRIORITIES, type PullPriority } from "./puller.ts";

/** Requests to one peer at the same time, and of those what no engine waits for. */
const REQUESTS_MAX = 16;
const PATIENT_REQUESTS_MAX = 8;
/** Of one request; what is more goes in a second one beside it. */
const REQUEST_BYTES_MAX = 64 << 20;

interface Tray {
  readonly peer: Peer;
  readonly namespace: NamespaceIndex;
  readonly priority: PullPriority;
  readonly asks: Ask[];
}

/**
 * Gathers what is asked of one peer at the same time into requests: all that was admitted in one
 * turn of the loop, and what had to wait because the peer has enough requests to answer.
 */
export class Outbox {
  readonly #itemsMax: () => number;
  readonly #send: (asks: Ask[]) => Promise<void>;
  readonly #trays = new Map<string, Tray>();
  /** A host that went and came again is another peer under the same name. */
  readonly #numbers = new WeakMap<Peer, number>();
  #peers = 0;
  readonly #underWay = new Map<Peer, number>();
  #planned = false;

  /** `send` resolves when the request is over, and never rejects. */
  constructor(itemsMax: () => number, send: (asks: Ask[]) => Promise<void>) {
    this.#itemsMax = itemsMax;
    this.#send = send;
  }

  add(ask: Ask): void {
    const { namespace, priority } = ask.flight;
    const name = `${PULL_PRIORITIES.indexOf(priority)} ${namespace} ${this.#numberOf(ask.peer)}`;
    const tray = this.#trays.get(name);
    if (tray === undefined)
      this.#trays.set(name, { peer: ask.peer, namespace, priority, asks: [ask] });
    else tray.asks.push(ask);
    this.#plan();
  }

  /** Whom it is for is more urgent than when it was added. */
  hasten(ask: Ask): void {
    for (const { asks } of this.#trays.values()) {
      const at = asks.indexOf(ask);
      if (at < 0) continue;
      asks.splice(at, 1);
      this.add(ask);
      return;
    }
  }

  #numberOf(peer: Peer): number {
    const known = this.#numbers.get(peer);
    if (known !== undefined) return known;
    this.#numbers.set(peer, ++this.#peers);
    return this.#peers;
  }

  #plan(): void {
    if (this.#planned) return;
    this.#planned = true;
    queueMicrotask(() => {
      this.#planned = false;
      this.#flush();
    });
  }

  /** The urgent first; within one urgency in the order in which they came. */
  #flush(): void {
    const trays = [...this.#trays].sort(([a], [b]) => a.charCodeAt(0) - b.charCodeAt(0));
    for (const [name, tray] of trays) {
      while (tray.asks.length > 0 && this.#mayBegin(tray)) this.#begin(tray);
      if (tray.asks.length === 0) this.#trays.delete(name);
    }
  }

  #mayBegin({ peer, priority }: Tray): boolean {
    const max = priority === "acquire" ? REQUESTS_MAX : PATIENT_REQUESTS_MAX;
    return (this.#underWay.get(peer) ?? 0) < max;
  }

  #begin(tray: Tray): void {
    const asks: Ask[] = [];
    let bytes = 0;
    while (tray.asks.length > 0 && asks.length < this.#itemsMax()) {
      const ask = tray.asks[0]!;
      if (asks.length > 0 && bytes + ask.bytes > REQUEST_BYTES_MAX) break;
      tray.asks.shift();
      if (ask.over) continue;
      bytes += ask.bytes;
      asks.push(ask);
    }
    if (asks.length === 0) return;
    this.#underWay.set(tray.peer, (this.#underWay.get(tray.peer) ?? 0) + 1);
    void this.#send(asks).then(() => this.#ended(tray.peer));
  }

  #ended(peer: Peer): void {
    const left = this.#underWay.get(peer)! - 1;
    if (left === 0) this.#underWay.delete(peer);
    else this.#underWay.set(peer, left);
    if (this.#trays.size > 0) this.#plan();
  }
}
