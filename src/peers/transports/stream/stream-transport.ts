import type { AddressInfo, Socket } from "node:net";
import type { Server, TLSSocket } from "node:tls";
import { assert, type Clock, HearthError, messageOf, type WorkerId } from "../../../core/index.ts";
import { type Cipher, type Lanes, NativeError, type Region } from "../../../native/index.ts";
import type {
  Dialled,
  DialTarget,
  Endpoint,
  PeerLink,
  PeerServer,
  Transport,
  TransportCapabilities,
  TransportLog,
} from "../../transport.ts";
import type { Trust } from "../../trust.ts";
import { REQUEST_BYTES_MAX } from "../../wire/index.ts";
import { HeldLinks } from "../held-links.ts";
import type { AskerLink } from "./asker-link.ts";
import { dialStream } from "./dial.ts";
import { STREAM_LIMITS, type StreamLimits } from "./limits.ts";
import { MessageLine } from "./message-line.ts";
import { type LinkHost, ServedLink } from "./served-link.ts";
import { createTlsServer, identify, renewTlsServer } from "./tls.ts";

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

/** Room for what stands around a request in its message. */
const AROUND_BYTES = 64;

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
  readonly #served = new Map<ServedLink, Disposable>();
  readonly #asked = new Set<PeerLink>();
  /** Connections that have not shown a certificate yet. */
  readonly #shaking = new Set<Socket>();
  readonly #held: HeldLinks;
  #lanes: Lanes | null = null;
  #tls: Server | null = null;
  #requests = 0;
  /** Resolves when it is closed; null while it is not. */
  #closed: Promise<void> | null = null;

  constructor(options: StreamOptions) {
    this.#options = options;
    this.#limits = { ...STREAM_LIMITS, ...options.limits };
    const { trust, clock, log } = options;
    this.#held = new HeldLinks({ trust, clock, log, lookMs: this.#limits.judgeMs });
    const encrypted = !options.ciphers.includes("none");
    this.capabilities = { encrypted, direct: true, early: false, oneSided: false };
  }

  get inboundLinks(): number {
    return this.#served.size;
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
    assert(this.#tls === null, "a transport listens once");
    const { trust, clock, log, ciphers, lanes: lanesMax, lanesPort } = this.#options;
    const { host } = endpoint;
    const tls = createTlsServer(trust, this.#limits.handshakeMs);
    this.#tls = tls;
    const { address, port } = await listenAt(tls, endpoint);
    const linkHost: LinkHost = {
      ...{ server, lanes, ciphers, lanesMax, clock, log, limits: this.#limits },
      // The native library knows addresses only, and a host may be a name.
      lanesPort: lanes.listen(address, lanesPort),
      takeRequest: () => {
        if (this.#requests >= this.#limits.requestsMax) return false;
        this.#requests++;
        return true;
      },
      giveRequest: () => {
        this.#requests--;
      },
      onOver: (link) => {
        this.#served.get(link)?.[Symbol.dispose]();
        this.#served.delete(link);
      },
    };
    this.#takeLinks(tls, linkHost);
    return { host, port };
  }

  #takeLinks(tls: Server, host: LinkHost): void {
    const { log } = host;
    tls.on("connection", (socket) => {
      // Who knows a key is done in a few round trips: who has been there longest has to go.
      const [oldest] = this.#shaking;
      if (oldest !== undefined && this.#shaking.size >= this.#limits.handshakesMax) {
        log("warn", "too many shake hands: one was sent away", { from: addressOf(oldest) });
        this.#shaking.delete(oldest);
        oldest.destroy();
      }
      this.#shaking.add(socket);
      socket.once("close", () => this.#shaking.delete(socket));
    });
    tls.on("tlsClientError", (error, socket) => {
      log("warn", "a peer was refused", { from: addressOf(socket), why: error.message });
      socket.destroy();
    });
    tls.on("secureConnection", (socket) => {
      this.#shaking.delete(socket);
      this.#welcome(socket, host);
    });
  }

  /** Looks at who it is before anything is read. */
  #welcome(socket: TLSSocket, host: LinkHost): void {
    const { trust, clock, log } = this.#options;
    const { unreadBytesMax } = this.#limits;
    socket.setNoDelay(true);
    const line = new MessageLine(socket, {
      clock,
      messageBytesMax: REQUEST_BYTES_MAX + AROUND_BYTES,
      unreadBytesMax,
    });
    const judged = identify(socket, trust, null);
    const refusal = judged.ok ? this.#whyNoMore(judged.identity.worker) : judged.why;
    if (!judged.ok || refusal !== null) {
      log("warn", "a peer was refused", { from: addressOf(socket), why: refusal ?? "" });
      const why = judged.ok ? "it takes no more links" : "the certificate is not accepted";
      line.close({ kind: "bye", fault: "refused", why });
      return;
    }
    const { identity, der } = judged;
    const link = new ServedLink(identity, line, host);
    const refuse = (why: string) => link.end("refused", why);
    this.#served.set(link, this.#held.hold({ identity, der, dialled: null, refuse }));
    line.handTo(link);
  }

  #whyNoMore(worker: WorkerId): string | null {
    if (this.#closed !== null) return "this side is closing";
    const { linksMax, workerLinksMax } = this.#limits;
    if (this.#served.size >= linksMax) return `there are ${linksMax} links`;
    const own = [...this.#served.keys()].filter((link) => link.peer.worker === worker);
    return own.length < workerLinksMax ? null : `${worker} has ${workerLinksMax} links`;
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
    const { link } = dialled;
    this.#hold(link, dialled.der, target.worker);
    if (this.#closed !== null) await link[Symbol.asyncDispose]();
    return link.fault === null ? dialled : { ok: false, fault: link.fault };
  }

  #hold(link: AskerLink, der: Uint8Array, dialled: WorkerId): void {
    const { identity } = link;
    const refuse = (why: string) => link.refuse(why);
    const held = this.#held.hold({ identity, der, dialled, refuse });
    this.#asked.add(link);
    link.ended.then(() => {
      this.#asked.delete(link);
      held[Symbol.dispose]();
    });
    // What is believed may have changed while its lanes came.
    const judged = this.#options.trust.judge(der, dialled);
    if (!judged.ok) link.refuse(judged.why);
  }

  async reload(): Promise<void> {
    this.#held.judge();
    if (this.#tls !== null) renewTlsServer(this.#tls, this.#options.trust);
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    this.#tls?.close();
    const asked = [...this.#asked];
    const served = [...this.#served.keys()];
    for (const link of served) link.end("closed", "it is closing");
    await Promise.all(asked.map((link) => link[Symbol.asyncDispose]()));
    await Promise.all(served.map((link) => link.quiet()));
    await this.#lanes?.[Symbol.asyncDispose]();
  }
}

function addressOf(socket: Socket): string {
  return socket.remoteAddress ?? "";
}

/** Where it listens, once it does. */
function listenAt(server: Server, endpoint: Endpoint): Promise<AddressInfo> {
  const { host, port } = endpoint;
  return new Promise((resolve, reject) => {
    server.once("error", (cause) => {
      const what = `peers cannot be taken at ${host}:${port}: ${messageOf(cause)}`;
      const fix = "let [peers].listen_stream name a free port of this host";
      reject(new HearthError("CONFIG_INVALID", what, { cause, fix }));
    });
    server.listen(port, host, () => {
      server.removeAllListeners("error");
      server.on("error", () => {});
      const address = server.address();
      assert(address !== null && typeof address === "object", "a TCP server has a port");
      resolve(address);
    });
  });
}
