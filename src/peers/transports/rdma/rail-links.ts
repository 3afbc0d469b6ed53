import type { Rdma, RdmaLink, RdmaLinkSettings, RdmaPort } from "../../../native/index.ts";
import { type PairedRail, RAILS_MAX, type Rail } from "./control/index.ts";
import { pairRails, usablePorts } from "./rails.ts";

/** A queue pair for one of the other side's rails. */
export interface MadeRail {
  readonly rail: number;
  readonly link: RdmaLink;
}

/** Makes the queue pairs of links, spread over this host's ports. */
export class RailLinks {
  readonly #rdma: Rdma;
  readonly #settings: RdmaLinkSettings;
  /** Queue pairs of a link, at most. */
  readonly #rails: number;
  /** Queue pairs of each port. */
  readonly #on = new Map<number, number>();
  /** Not ended. */
  readonly #all = new Set<RdmaLink>();

  constructor(rdma: Rdma, settings: RdmaLinkSettings, rails: number) {
    this.#rdma = rdma;
    this.#settings = settings;
    this.#rails = rails;
  }

  get wanted(): number {
    return this.#rails;
  }

  /** What can be used now, best first. */
  offered(): RdmaPort[] {
    const ports = usablePorts(this.#rdma.ports(), (port) => this.#on.get(port) ?? 0);
    return ports.slice(0, RAILS_MAX);
  }

  /** Queue pairs for an asker's rails; none where no port reaches one. Throws NativeError. */
  answer(rails: readonly Rail[], wanted: number): MadeRail[] {
    const pairs = pairRails(rails, this.offered(), Math.min(wanted, this.#rails));
    return this.#make(pairs.map(({ rail, port }) => ({ rail, port: port.index })));
  }

  /** Queue pairs towards those that a holder has made, connected. Throws NativeError. */
  connect(offered: readonly RdmaPort[], pairs: readonly PairedRail[]): RdmaLink[] {
    const made = this.#make(pairs.map(({ rail }) => ({ rail, port: offered[rail]!.index })));
    try {
      for (const [index, { link }] of made.entries()) link.connect(pairs[index]!.address);
    } catch (thrown) {
      for (const { link } of made) void link[Symbol.asyncDispose]();
      throw thrown;
    }
    return made.map(({ link }) => link);
  }

  #make(wanted: readonly { readonly rail: number; readonly port: number }[]): MadeRail[] {
    const made: MadeRail[] = [];
    try {
      for (const { rail, port } of wanted) made.push({ rail, link: this.#link(port) });
    } catch (thrown) {
      for (const { link } of made) void link[Symbol.asyncDispose]();
      throw thrown;
    }
    return made;
  }

  #link(port: number): RdmaLink {
    const link = this.#rdma.link(port, this.#settings);
    const count = (by: 1 | -1) => this.#on.set(port, (this.#on.get(port) ?? 0) + by);
    count(1);
    this.#all.add(link);
    void link.ended.then(() => {
      count(-1);
      this.#all.delete(link);
    });
    return link;
  }

  /** Resolves when no queue pair is left. */
  async close(): Promise<void> {
    await Promise.all([...this.#all].map((link) => link[Symbol.asyncDispose]()));
  }
}
