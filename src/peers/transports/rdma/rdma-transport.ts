import { assert, type Clock, HearthError } from "../../../core/index.ts";
import {
  NativeError,
  type Rdma,
  type RdmaLinkSettings,
  type RdmaState,
  type Region,
} from "../../../native/index.ts";
import type {
  Dialled,
  DialTarget,
  Endpoint,
  PeerServer,
  Transport,
  TransportLog,
} from "../../transport.ts";
import type { Trust } from "../../trust.ts";
import { type LinkRoom, Links, ServedLink } from "../line/index.ts";
import { RDMA_CODEC, type RdmaMessage } from "./control/index.ts";
import { dialRdma } from "./dial.ts";
import { RDMA_LIMITS, type RdmaLimits } from "./limits.ts";
import { RDMA_PROTOCOL } from "./protocol.ts";
import { RailLinks } from "./rail-links.ts";
import { ServedRails } from "./served-rails.ts";

export interface RdmaTransportOptions {
  readonly trust: Trust;
  readonly clock: Clock;
  readonly log: TransportLog;
  /** The devices, opened for the region; not closed here. May throw NativeError. */
  readonly rdmaOf: (region: Region) => Rdma;
  readonly settings: RdmaLinkSettings;
  /** Queue pairs of one link, each over a port of its own: 1 to 8. */
  readonly rails: number;
  readonly limits?: Partial<RdmaLimits>;
}

/** Why it does not work, for each state but `ready`. */
const WORDS: Readonly<Record<Exclude<RdmaState, "ready">, string>> = {
  no_library: "libibverbs.so.1 is not installed",
  no_device: "there is no RDMA device",
  memlock: "too little memory may be locked: raise RLIMIT_MEMLOCK",
  not_permitted: "the RDMA devices may not be opened",
  too_old: "libibverbs.so.1 is too old",
  failed: "the RDMA devices could not be opened",
};

/**
 * Requests over TLS 1.3 with certificates on both sides; blocks are read by the asker's device out
 * of the holder's arena, span by span as they are lent. What is read goes over the network in the
 * clear.
 */
export class RdmaTransport implements Transport {
  readonly name = "rdma";
  readonly capabilities = { encrypted: false, direct: true, early: false, oneSided: true };
  unsupported: string | null = null;
  readonly #options: RdmaTransportOptions;
  readonly #limits: RdmaLimits;
  readonly #links: Links<RdmaMessage>;
  #rails: RailLinks | null = null;
  /** Resolves when it is closed; null while it is not. */
  #closed: Promise<void> | null = null;

  constructor(options: RdmaTransportOptions) {
    this.#options = options;
    this.#limits = { ...RDMA_LIMITS, ...options.limits };
    const { trust, clock, log } = options;
    this.#links = new Links({
      ...{ trust, clock, log, limits: this.#limits },
      ...{ codec: RDMA_CODEC, protocol: RDMA_PROTOCOL, key: "listen_rdma" },
    });
  }

  get inboundLinks(): number {
    return this.#links.inbound;
  }

  async register(region: Region): Promise<void> {
    assert(this.#rails === null, "a region is registered once");
    const { rdmaOf, settings, rails } = this.#options;
    try {
      const rdma = rdmaOf(region);
      if (rdma.state === "ready") this.#rails = new RailLinks(rdma, settings, rails);
      else this.unsupported = WORDS[rdma.state];
    } catch (thrown) {
      if (!(thrown instanceof NativeError)) throw thrown;
      this.unsupported = thrown.text;
    }
  }

  async listen(endpoint: Endpoint, server: PeerServer): Promise<Endpoint> {
    const rails = this.#rails;
    if (rails === null) throw new HearthError("UNSUPPORTED", this.unsupported ?? "no region");
    const { port } = await this.#links.listen(endpoint);
    const host = this.#links.hostFor(server);
    this.#links.takeWith((peer, line, onOver) => {
      const late = "its queue pairs did not come";
      const carry = (room: LinkRoom<RdmaMessage>) => new ServedRails(room, rails, this.#limits);
      return new ServedLink({ peer, line, host, payload: carry, late, onOver });
    });
    return { host: endpoint.host, port };
  }

  async dial(target: DialTarget, signal: AbortSignal): Promise<Dialled> {
    if (this.#closed !== null) return { ok: false, fault: { kind: "closed", why: "it is closed" } };
    const rails = this.#rails;
    if (rails === null) {
      const why = this.unsupported ?? "no region is registered";
      return { ok: false, fault: { kind: "unsupported", why } };
    }
    const { trust, clock } = this.#options;
    const dialled = await dialRdma(target, { trust, rails, clock, limits: this.#limits }, signal);
    if (!dialled.ok) return dialled;
    return await this.#links.adopt(dialled.link, dialled.der, target.worker);
  }

  async reload(): Promise<void> {
    this.#links.reload();
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    await this.#links.close();
    await this.#rails?.close();
  }
}
