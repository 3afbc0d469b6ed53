import { assert, type Clock, HearthError } from "../../../core/index.ts";
import { type Cipher, type Lanes, NativeError, type Region } from "../../../native/index.ts";
import type {
  Dialled,
  DialTarget,
  Endpoint,
  PeerServer,
  Transport,
  TransportCapabilities,
  TransportLog,
} from "../../transport.ts";
import type { Trust } from "../../trust.ts";
import { type LinkRoom, Links, ServedLink } from "../line/index.ts";
import { STREAM_CODEC, type StreamMessage } from "./control/index.ts";
import { dialStream } from "./dial.ts";
import { STREAM_LIMITS, type StreamLimits } from "./limits.ts";
import { STREAM_PROTOCOL } from "./protocol.ts";
import { ServedLanes } from "./served-lanes.ts";

export interface StreamOptions {
  readonly trust: Trust;
  readonly clock: Clock;
  readonly log: TransportLog;
  /** The lanes of the region; throws NativeError where there can be none. */
  readonly openLanes: (region: Region) => Lanes;
  /** Accepted ones, the best first; `none` only where the operator declared the network trusted. */
  readonly ciphers: readonly Cipher[];
  /** Connections that carry payload, of each link. */
  readonly lanes: number;
  /** Where lanes are taken; 0: any free port. */
  readonly lanesPort: number;
  readonly limits?: Partial<StreamLimits>;
}

/**
 * Requests over TLS 1.3 with certificates on both sides; payload over plain TCP connections of the
 * native library, sealed with keys that travel inside TLS, from arena to arena.
 */
export class StreamTransport implements Transport {
  readonly name = "stream";
  readonly capabilities: TransportCapabilities;
  unsupported: string | null = null;
  readonly #options: StreamOptions;
  readonly #limits: StreamLimits;
  readonly #links: Links<StreamMessage>;
  #lanes: Lanes | null = null;
  /** Resolves when it is closed; null while it is not. */
  #closed: Promise<void> | null = null;

  constructor(options: StreamOptions) {
    this.#options = options;
    this.#limits = { ...STREAM_LIMITS, ...options.limits };
    const { trust, clock, log } = options;
    this.#links = new Links({
      ...{ trust, clock, log, limits: this.#limits },
      ...{ codec: STREAM_CODEC, protocol: STREAM_PROTOCOL, key: "listen_stream" },
    });
    const encrypted = !options.ciphers.includes("none");
    this.capabilities = { encrypted, direct: true, early: false, oneSided: false };
  }

  get inboundLinks(): number {
    return this.#links.inbound;
  }

  async register(region: Region): Promise<void> {
    assert(this.#lanes === null, "a region is registered once");
    try {
      this.#lanes = this.#options.openLanes(region);
    } catch (thrown) {
      if (!(thrown instanceof NativeError)) throw thrown;
      this.unsupported = thrown.text;
    }
  }

  async listen(endpoint: Endpoint, server: PeerServer): Promise<Endpoint> {
    const lanes = this.#lanes;
    if (lanes === null) throw new HearthError("UNSUPPORTED", this.unsupported ?? "no region");
    const { ciphers, lanes: lanesMax, lanesPort } = this.#options;
    const { address, port } = await this.#links.listen(endpoint);
    // The native library knows addresses only, and a host may be a name.
    const payload = { lanes, ciphers, lanesMax, lanesPort: lanes.listen(address, lanesPort) };
    const host = this.#links.hostFor(server);
    this.#links.takeWith((peer, line, onOver) => {
      const late = "its lanes did not come";
      const carry = (room: LinkRoom<StreamMessage>) => new ServedLanes(room, payload);
      return new ServedLink({ peer, line, host, payload: carry, late, onOver });
    });
    return { host: endpoint.host, port };
  }

  async dial(target: DialTarget, signal: AbortSignal): Promise<Dialled> {
    if (this.#closed !== null) return { ok: false, fault: { kind: "closed", why: "it is closed" } };
    const lanes = this.#lanes;
    if (lanes === null) {
      const why = this.unsupported ?? "no region is registered";
      return { ok: false, fault: { kind: "unsupported", why } };
    }
    const { trust, ciphers, lanes: lanesMax, clock } = this.#options;
    const own = { trust, lanes, ciphers, lanesMax, clock, limits: this.#limits };
    const dialled = await dialStream(target, own, signal);
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
    await this.#lanes?.[Symbol.asyncDispose]();
  }
}
