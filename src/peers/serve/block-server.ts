import type { Clock, NamespaceIndex, Random } from "../../core/index.ts";
import type { PeerBlocks } from "../../store/index.ts";
import type { PeerAnswer, PeerFound, PeerHello, PeerRequest } from "../messages.ts";
import type { PeerServer, Served, TransportLog } from "../transport.ts";
import type { PeerIdentity } from "../trust.ts";
import { FOUND_MAX, KeyFilterBuilder } from "../wire/index.ts";
import { Backlog } from "./backlog.ts";
import { modelOnWire } from "./frame-header.ts";
import type { ServeLimits } from "./serve-limits.ts";
import { noCounts, type ServeStats } from "./serve-stats.ts";
import { type PullRequest, ServedPull } from "./served-pull.ts";
import { Summaries, type Summary } from "./summaries.ts";

export interface BlockServerParts {
  readonly blocks: PeerBlocks;
  /** The number of a namespace that this host has; null: none. It must not make one. */
  namespaceOf(key: Uint8Array): NamespaceIndex | null;
  /** Name of the model of a namespace; empty where it is not known. */
  modelOf(key: Uint8Array): string;
  /** What this host says of itself. */
  hello(): PeerHello;
  readonly limits: ServeLimits;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: TransportLog;
}

/** The summary of a namespace that is not served or not known. */
const NOTHING = { version: 1n, filter: new KeyFilterBuilder(0).done() };
const CLOSED: PeerAnswer = { op: "refused", why: "this host is about to stop" };

/**
 * Gives peers the blocks of this host. Promises, beyond those of `PeerServer`:
 *
 * - A namespace that is not served is as one that is not known here, in every answer.
 * - Blocks lent and requests under way are bounded, in all and for each peer; what is beyond is
 *   told `busy`, with the time that what is lent will take to leave.
 * - Disposing ends all pulls: blocks that no transport has are let go of.
 */
export class BlockServer implements PeerServer, Disposable {
  readonly #parts: BlockServerParts;
  readonly #backlog: Backlog;
  readonly #summaries: Summaries;
  readonly #counts = noCounts();
  readonly #open = new Set<ServedPull>();
  #isClosed = false;

  constructor(parts: BlockServerParts) {
    this.#parts = parts;
    this.#backlog = new Backlog(parts.clock, parts.limits);
    const { blocks, clock, random, log } = parts;
    const onBuilt = () => void this.#counts.summariesBuilt++;
    this.#summaries = new Summaries({ blocks, clock, random, log, onBuilt });
  }

  get stats(): ServeStats {
    const { peers, lentBlocks, lentBytes, reads } = this.#backlog;
    const now = { peers, openPulls: this.#open.size, lentBlocks, lentBytes, reads };
    return { ...this.#counts, ...now };
  }

  configure(limits: ServeLimits): void {
    this.#backlog.limits = limits;
  }

  async call(
    peer: PeerIdentity,
    request: Exclude<PeerRequest, { op: "pull" }>,
  ): Promise<PeerAnswer> {
    if (this.#isClosed) return CLOSED;
    this.#counts.questions++;
    switch (request.op) {
      case "hello": {
        const why = "the certificate is that of another worker";
        if (request.hello.worker !== peer.worker) return { op: "refused", why };
        return { op: "hello", hello: this.#parts.hello() };
      }
      case "has": {
        const namespace = this.#namespaceOf(request.namespace);
        const nothing = { tiers: 0, bytes: 0, generation: 0n, checksum: 0n };
        if (namespace === null) return { op: "has", blocks: request.blocks.map(() => nothing) };
        return { op: "has", blocks: this.#parts.blocks.has(namespace, request.blocks) };
      }
      case "find":
        return { op: "find", found: request.names.map((name) => this.#find(name)) };
      case "summary":
        return this.#summary(peer, request);
      default:
        return request satisfies never;
    }
  }

  serve(peer: PeerIdentity, pull: PullRequest, signal: AbortSignal): AsyncIterable<Served> {
    const { blocks, clock, log } = this.#parts;
    const [backlog, counts, open] = [this.#backlog, this.#counts, this.#open];
    const namespace = this.#namespaceOf(pull.namespace);
    const model = namespace === null ? "" : modelOnWire(this.#parts.modelOf(pull.namespace));
    if (this.#isClosed) signal = AbortSignal.abort();
    const what = { blocks, backlog, counts, open, clock, log, peer, pull, namespace, model };
    return { [Symbol.asyncIterator]: () => new ServedPull({ ...what, signal }) };
  }

  #namespaceOf(key: Uint8Array): NamespaceIndex | null {
    const namespace = this.isServed(key) ? this.#parts.namespaceOf(key) : null;
    if (namespace === null) this.#counts.foreign++;
    return namespace;
  }

  /** Whether peers may ask for this namespace (key of 32 bytes), be it known here or not. */
  isServed(key: Uint8Array): boolean {
    const { namespaces } = this.#backlog.limits;
    return namespaces === null || namespaces.has(key.toHex());
  }

  #find(name: Uint8Array): PeerFound[] {
    return this.#parts.blocks.find(name, FOUND_MAX, (namespace) => this.isServed(namespace));
  }

  async #summary(
    { worker }: PeerIdentity,
    { namespace: key, known }: Extract<PeerRequest, { op: "summary" }>,
  ): Promise<PeerAnswer> {
    const namespace = this.#namespaceOf(key);
    if (namespace === null) return summaryOf(NOTHING, known);
    if (!this.#backlog.enter(worker)) {
      return { op: "busy", retryAfterMs: this.#backlog.retryAfterMs };
    }
    try {
      const summary = await this.#summaries.get(namespace, this.#backlog.limits);
      if (summary !== null) return summaryOf(summary, known);
      return { op: "busy", retryAfterMs: this.#backlog.limits.summaryMs };
    } finally {
      this.#backlog.leave(worker);
    }
  }

  [Symbol.dispose](): void {
    this.#isClosed = true;
    this.#summaries.end();
    for (const pull of [...this.#open]) pull.end();
  }
}

function summaryOf(summary: Pick<Summary, "version" | "filter">, known: bigint): PeerAnswer {
  const { version, filter } = summary;
  return { op: "summary", version, filter: version === known ? null : filter.bytes };
}
