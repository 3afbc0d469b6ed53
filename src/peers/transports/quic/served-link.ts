import type { WorkerId } from "../../../core/index.ts";
import type { PeerIdentity, Trust } from "../../trust.ts";
import type { HeldLinks } from "../held-links.ts";
import { Slots } from "../slots.ts";
import { closeSession } from "./close-session.ts";
import { Code, faultOf } from "./codes.ts";
import type { Session, Stream } from "./module.ts";
import { isProof } from "./preface.ts";
import { ServedStream, type ServeHost } from "./served-stream.ts";

export interface LinkHost extends ServeHost {
  readonly trust: Trust;
  readonly held: HeldLinks;
  /** Why no link more of this worker is taken; null: one is. */
  whyNoMore(worker: WorkerId): string | null;
  onOver(link: ServedLink): void;
}

/** A connection that a peer made to us. Its certificate is judged before a request is parsed. */
export class ServedLink {
  readonly #session: Session;
  readonly #host: LinkHost;
  readonly #streams = new Set<ServedStream>();
  readonly #running = new Set<Promise<void>>();
  readonly #longAnswers: Slots;
  readonly #judged: Promise<PeerIdentity | null>;
  readonly #watch: Disposable;
  #peer: PeerIdentity | null = null;
  #hold: Disposable | null = null;
  #isProven = false;
  #isOver = false;
  #isLeaving = false;

  constructor(session: Session, host: LinkHost) {
    this.#session = session;
    this.#host = host;
    const { clock, limits } = host;
    this.#longAnswers = new Slots(1, limits.linkRequestsMax);
    this.#watch = clock.every(Math.max(1, limits.stallMs / 4), () => this.#look());
    const over = () => {
      this.#isOver = true;
      this.#watch[Symbol.dispose]();
      this.#hold?.[Symbol.dispose]();
      host.onOver(this);
    };
    session.closed.then(over, over);
    session.onstream = (stream) => this.#take(stream);
    this.#judged = this.#judge();
  }

  /** Null until its certificate was found good, and after its end. */
  get peer(): PeerIdentity | null {
    return this.#isOver ? null : this.#peer;
  }

  /** Who has proven who he is; null before, and after its end. */
  get proven(): WorkerId | null {
    return this.#isProven ? (this.peer?.worker ?? null) : null;
  }

  async #judge(): Promise<PeerIdentity | null> {
    const { trust, log } = this.#host;
    let why: string;
    try {
      const { validationErrorReason: invalid } = await this.#session.opened;
      const certificate = this.#session.peerCertificate;
      if (certificate === undefined) why = "it showed no certificate";
      else if (invalid !== undefined) why = invalid;
      else {
        const judged = trust.judge(certificate.raw, null);
        if (judged.ok) {
          this.#accept(judged.identity, certificate.raw);
          return judged.identity;
        }
        why = judged.why;
      }
    } catch (thrown) {
      why = faultOf(thrown).why;
    }
    log("warn", "a peer was refused", { from: this.#from, why });
    this.#refuse();
    return null;
  }

  #accept(identity: PeerIdentity, der: Uint8Array): void {
    this.#peer = identity;
    if (this.#isOver) return;
    const refuse = () => this.#refuse();
    this.#hold = this.#host.held.hold({ identity, der, dialled: null, refuse });
  }

  get #from(): string {
    const remote = this.#session.destroyed ? undefined : this.#session.path?.remote;
    return remote === undefined ? "" : remote.address;
  }

  /** A peer whose certificate is good and who holds its key. */
  async #welcome(proof: Uint8Array): Promise<PeerIdentity | null> {
    const peer = await this.#judged;
    if (peer === null || this.#isProven || this.#isOver) return this.#isOver ? null : peer;
    const { trust, log } = this.#host;
    const { cluster, worker: holder } = trust.credentials;
    const certificate = this.#session.peerCertificate!;
    const isHe = isProof(certificate, { cluster, asker: peer.worker, holder }, proof);
    const { worker } = peer;
    const why = isHe ? this.#host.whyNoMore(worker) : `it does not prove that it is ${worker}`;
    if (why === null) {
      this.#isProven = true;
      return peer;
    }
    log("warn", "a peer was refused", { from: this.#from, why });
    this.#refuse(isHe ? Code.full : Code.refused);
    return null;
  }

  #refuse(code: number = Code.refused): void {
    if (this.#session.destroyed) return;
    this.#session.destroy(undefined, { code, type: "application" });
  }

  #take(stream: Stream): void {
    stream.closed.catch(() => {});
    const served = new ServedStream(stream, this.#host, this.#longAnswers);
    if (this.#isLeaving) {
      served.stop(Code.leaving);
      return;
    }
    this.#streams.add(served);
    const running = served.run((proof) => this.#welcome(proof));
    this.#running.add(running);
    void running.then(() => {
      this.#streams.delete(served);
      this.#running.delete(running);
    });
  }

  #look(): void {
    const nowMs = this.#host.clock.monotonicMs();
    for (const stream of this.#streams) stream.look(nowMs);
  }

  /** Ends what is under way, then the connection. */
  async close(): Promise<void> {
    this.#isLeaving = true;
    for (const stream of this.#streams) stream.stop(Code.leaving);
    await Promise.all(this.#running);
    const { clock, limits } = this.#host;
    await closeSession(this.#session, Code.leaving, clock, limits.closeMs);
  }

  /** Lets what is under way be finished, for a while, and ends the connection. */
  async leave(): Promise<void> {
    this.#isLeaving = true;
    const { promise: late, resolve } = Promise.withResolvers<void>();
    using _timer = this.#host.clock.after(this.#host.limits.stallMs, resolve);
    await Promise.race([Promise.all(this.#running), late]);
    await this.close();
  }
}
