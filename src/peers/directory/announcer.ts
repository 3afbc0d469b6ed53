import type { Bus, BusMessage, Subscription } from "../../bus/index.ts";
import { type Clock, type Random, randomBelow } from "../../core/index.ts";
import type { TransportLog } from "../transport.ts";
import {
  type Announcement,
  encodeAnnouncement,
  membersSubject,
  readAnnouncement,
} from "./announcement.ts";
import type { KnownMembers } from "./known-members.ts";

export interface AnnouncerOptions {
  /** Not closed here. */
  readonly bus: Bus;
  readonly members: KnownMembers;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: TransportLog;
  /** This host as it is now; null says nothing, and listens. */
  readonly self: () => Omit<Announcement, "kind"> | null;
  readonly cluster: string;
  readonly everyMs: number;
}

/** For a thousand hosts at their shortest interval, twice. */
const MESSAGES_PER_SECOND = 4_096;
/** Hosts answer a new one within so long, not all at once. */
const ANSWER_MS = 1_000;
const SECOND_MS = 1_000;

/** What became of others' messages since the start. */
export interface AnnouncerStats {
  readonly heard: number;
  readonly refused: number;
  /** More than anybody needs: not even read. */
  readonly dropped: number;
}

/**
 * Says over the bus that this host is there, and hears of the others. What others say is a hint:
 * who they are is proven by the certificate when they are spoken to.
 */
export class Announcer implements Disposable {
  readonly #options: AnnouncerOptions;
  readonly #subject: string;
  readonly #subscription: Subscription;
  readonly #watches: readonly Disposable[];
  #answer: Disposable | null = null;
  /** This host as it was said last. */
  #said: Omit<Announcement, "kind"> | null = null;
  #left = MESSAGES_PER_SECOND;
  /** Another process under this worker's name, which was warned of. */
  #namesake: bigint | null = null;
  #heard = 0;
  #refused = 0;
  #dropped = 0;

  constructor(options: AnnouncerOptions) {
    const { bus, clock, everyMs } = options;
    this.#options = options;
    this.#subject = membersSubject(options.cluster);
    this.#subscription = bus.subscribe(this.#subject, (message) => this.#take(message));
    this.#watches = [
      clock.every(everyMs, () => this.#say("here")),
      clock.every(SECOND_MS, () => this.#count()),
      bus.onStatus(({ status }) => {
        if (status === "connected") this.#say("hello");
      }),
    ];
    this.#say("hello");
  }

  stats(): AnnouncerStats {
    return { heard: this.#heard, refused: this.#refused, dropped: this.#dropped };
  }

  /** Says goodbye. */
  [Symbol.dispose](): void {
    for (const watch of this.#watches) watch[Symbol.dispose]();
    this.#answer?.[Symbol.dispose]();
    this.#subscription.unsubscribe();
    this.#say("bye");
  }

  #say(kind: Announcement["kind"]): void {
    const { bus } = this.#options;
    const self = this.#options.self();
    this.#said = self;
    // What waited for a connection would be wrong by then.
    if (self === null || bus.state.status !== "connected") return;
    bus.publish(this.#subject, encodeAnnouncement({ ...self, kind }), { isSpare: true });
  }

  #take({ data }: BusMessage): void {
    if (this.#left === 0) {
      this.#dropped++;
      return;
    }
    this.#left--;
    const read = readAnnouncement(data);
    if (!read.ok) {
      this.#refused++;
      this.#options.log("debug", "an announcement was refused", { why: read.why });
      return;
    }
    const { announcement } = read;
    if (announcement.cluster !== this.#options.cluster) return;
    // Not asked for anew: that costs what a host has of namespaces, for every message.
    const self = this.#said;
    if (self?.worker === announcement.worker) this.#ownName(self, announcement);
    else this.#listen(announcement);
  }

  #listen(announcement: Announcement): void {
    this.#heard++;
    const { members } = this.#options;
    if (announcement.kind === "bye") members.left(announcement);
    else members.heard(announcement);
    if (announcement.kind === "hello") this.#answerSoon();
  }

  #ownName(self: Omit<Announcement, "kind">, { kind, incarnation }: Announcement): void {
    const isOurs = self.incarnation === incarnation || kind === "bye";
    if (isOurs || this.#namesake === incarnation) return;
    this.#namesake = incarnation;
    const text = "another host announces itself under this worker's name: give it its own node.id";
    this.#options.log("warn", text, { worker: self.worker });
  }

  #answerSoon(): void {
    const { clock, random } = this.#options;
    this.#answer ??= clock.after(randomBelow(random, ANSWER_MS), () => {
      this.#answer = null;
      this.#say("here");
    });
  }

  #count(): void {
    if (this.#left === 0) {
      this.#options.log("warn", "announcements of peers come too fast", { dropped: this.#dropped });
    }
    this.#left = MESSAGES_PER_SECOND;
  }
}
