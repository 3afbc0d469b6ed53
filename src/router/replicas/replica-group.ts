import type { Bus, BusLog, BusMessage, Subscription } from "../../bus/index.ts";
import {
  type Clock,
  isWorkerId,
  type Random,
  randomBelow,
  type WorkerId,
} from "../../core/index.ts";
import {
  decodeQuery,
  encodeAnswer,
  type ResidencyAnswer,
  type ResidencyQuery,
  type ResidencyRun,
  snapshotParts,
  workerNumber,
} from "../../events/index.ts";
import type { ResidencySource } from "../../observability/activity/index.ts";
import type { ActiveLoadOptions } from "../active-load.ts";
import type { FollowedSource, ResidencyIngest } from "../ingest/index.ts";
import type { PrefixIndex } from "../prefix-index.ts";
import type { BusyThresholds } from "../route.ts";
import type { Target, WorkerTable } from "../workers.ts";
import {
  type Announcement,
  DIFFERS_MIN,
  encodeAnnouncement,
  PICTURES_MAX,
  type Replica,
  type ReplicaTable,
  type RouterId,
  readAnnouncement,
  type SeenSnapshot,
  ThresholdTable,
} from "./announcement.ts";
import {
  encodeLoadEvents,
  encodeOutput,
  type LoadEvent,
  type NewsContext,
  RequestLists,
  readLoadEvents,
  readOutput,
  replicaSubjects,
} from "./load-codec.ts";
import { OwnerTable, SharedLoad } from "./shared-load.ts";

export const REPLICA_DEFAULTS = {
  /** Interval of this router's announcements. */
  everyMs: 1_000,
  /** Number of missing announcements after which another router counts as gone. */
  goneBeats: 5,
  /**
   * Time for which the requests of a gone router still count as load. Another router may free them.
   */
  orphanMs: 60_000,
  /** Minimum interval between messages about output tokens. */
  outputMs: 250,
  answerMs: 2_000,
};

export type ReplicaSettings = Readonly<typeof REPLICA_DEFAULTS>;

export interface ReplicaGroupOptions {
  /** Bus between the routers. The caller closes it. */
  readonly bus: Bus;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: BusLog;
  readonly cluster: string;
  readonly self: RouterId;
  readonly members: ReplicaTable;
  readonly index: PrefixIndex;
  readonly table: WorkerTable;
  readonly ingest: ResidencyIngest;
  /** Options for counting load. */
  readonly load: ActiveLoadOptions;
  readonly settings: ReplicaSettings;
  /**
   * Applies busy thresholds that were set at another router. Returns false if this router knows no
   * worker of that model yet.
   */
  readonly applyThresholds: (model: string, thresholds: BusyThresholds) => boolean;
}

export type ReplicaStats = ReplicaGroup["stats"];

/**
 * Maximum number of differing announcements to tolerate before the next fetch of a request list.
 */
const DIFFERS_MAX = 64;
const ANSWER_WITHIN_MS = 100;
const OUTPUT_MAX = 1_024;

/**
 * Exchanges load, thresholds and index digests with the other routers, so that all route by the
 * same state.
 */
export class ReplicaGroup implements AsyncDisposable {
  readonly load: SharedLoad;
  readonly #options: ReplicaGroupOptions;
  readonly #subjects: ReturnType<typeof replicaSubjects>;
  readonly #owners: OwnerTable;
  readonly #lists: RequestLists;
  readonly #snapshots: SnapshotServer;
  readonly #thresholds = new ThresholdTable();
  readonly #output = new Map<string, number>();
  readonly #orphans = new Map<RouterId, Disposable>();
  readonly #open: Disposable[] = [];
  readonly #stopping = new AbortController();
  readonly #running = new Set<Promise<unknown>>();
  #answer: Disposable | null = null;
  /** Worker by the number that Dynamo uses for it. */
  readonly #names = new Map<bigint, WorkerId>();
  readonly #context: NewsContext;
  #numbers = 0;
  #page = 0;
  #beatMs: number;
  readonly #counts = {
    sent: 0,
    received: 0,
    /** Load and output messages dropped because the bus queue was full. */
    dropped: 0,
    refused: 0,
    /**
     * Request lists fetched from other routers, because checksums differed or a router had just
     * joined.
     */
    lists: 0,
    orphansEnded: 0,
  };

  constructor(options: ReplicaGroupOptions) {
    const { bus, clock, table, self, load, settings, cluster } = options;
    const { blockTokens } = load;
    this.#options = options;
    this.#subjects = replicaSubjects(cluster);
    this.#beatMs = clock.monotonicMs();
    this.#owners = new OwnerTable();
    this.load = new SharedLoad({
      ...{ ...load, table, owners: this.#owners, self },
      publish: (news) => this.#publish(news),
      publishOutput: (id, tokens) => void this.#output.set(id, tokens),
    });
    const subjects = this.#subjects;
    const { answerMs } = settings;
    const context = { nameOf: (id: bigint) => this.#names.get(id) ?? null, blockTokens };
    this.#context = context;
    const lists = { bus, subjects, self, owners: this.#owners, load: this.load, answerMs, context };
    this.#lists = new RequestLists(lists);
    const subject = subjects.snapshotOf(self, "*", "*");
    this.#snapshots = new SnapshotServer({ ...options, subject });
    this.#subscribe(subjects.state, (message) => this.#hearState(message));
    this.#subscribe(subjects.load, (message) => this.#hearLoad(message));
    this.#subscribe(subjects.output, (message) => this.#hearOutput(message));
    this.#open.push(
      clock.every(settings.everyMs, () => this.#beat()),
      clock.every(settings.outputMs, () => this.#publishOutput()),
      bus.onStatus(({ status }) => {
        if (status === "connected") this.#announce("hello");
      }),
      table.listen(({ kind, target }) => {
        if (kind === "joined") this.#join(target);
        else if (kind === "left") this.#leave(target);
      }),
    );
    for (const target of table.targets) this.#join(target);
    this.#announce("hello");
  }

  get stats() {
    return {
      ...this.#counts,
      replicas: this.#options.members.all.length,
      snapshotsServed: this.#snapshots.served,
      unknownWorkers: this.load.unknownWorkers,
    };
  }

  /** Publishes busy thresholds that were set at this router to the other routers. */
  publishThresholds(model: string, thresholds: BusyThresholds): void {
    const { clock, self } = this.#options;
    this.#thresholds.take({ model, thresholds, wallMs: Math.trunc(clock.wallMs()), router: self });
    this.#announce("here");
  }

  /**
   * Announces the shutdown and stops. The other routers keep counting this router's requests as
   * load for `orphanMs`.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#stopping.signal.aborted) return;
    this.#stopping.abort();
    for (const one of this.#open) one[Symbol.dispose]();
    for (const timer of this.#orphans.values()) timer[Symbol.dispose]();
    this.#answer?.[Symbol.dispose]();
    this.#lists[Symbol.dispose]();
    this.#snapshots[Symbol.dispose]();
    this.#announce("bye");
    await Promise.all(this.#running);
  }

  #subscribe(subject: string, take: (message: BusMessage) => void): void {
    const subscription = this.#options.bus.subscribe(subject, take);
    this.#open.push({ [Symbol.dispose]: () => subscription.unsubscribe() });
  }

  #publish(news: LoadEvent): void {
    if (news.kind === "free") this.#output.delete(news.id);
    this.#send(this.#subjects.load, encodeLoadEvents(this.#options.self, ++this.#numbers, [news]));
  }

  #publishOutput(): void {
    const news = [...this.#output];
    this.#output.clear();
    for (let at = 0; at < news.length; at += OUTPUT_MAX) {
      const part = news.slice(at, at + OUTPUT_MAX);
      this.#send(this.#subjects.output, encodeOutput(this.#options.self, part));
    }
  }

  #send(subject: string, data: Uint8Array): void {
    if (this.#options.bus.publish(subject, data) === "dropped") this.#counts.dropped++;
    else this.#counts.sent++;
  }

  #announce(kind: Announcement["kind"]): void {
    const { bus, self, settings, cluster } = this.#options;
    // Announcements queued while disconnected would be outdated when they are sent.
    if (bus.state.status !== "connected") return;
    // Send pending output first: receivers compare the announced checksum with the events received
    // so far.
    this.#publishOutput();
    const announcement = {
      ...{ kind, router: self, everyMs: settings.everyMs },
      requests: this.#owners.sumOf(self),
      snapshots: this.#someSnapshots(),
      thresholds: this.#thresholds.all,
    };
    bus.publish(this.#subjects.state, encodeAnnouncement(announcement, cluster), { isSpare: true });
  }

  /**
   * Returns the index state of the next few sources. Successive calls rotate through all sources.
   */
  #someSnapshots(): SeenSnapshot[] {
    const { ingest, index } = this.#options;
    const known = ingest.sources().filter(({ isKnown }) => isKnown);
    if (this.#page * PICTURES_MAX >= known.length) this.#page = 0;
    const from = this.#page++ * PICTURES_MAX;
    return known.slice(from, from + PICTURES_MAX).flatMap(({ source, sequence, target }) => {
      const digests = index.digests(target);
      return digests === null ? [] : [{ source, sequence, digests }];
    });
  }

  #beat(): void {
    const { clock, members, settings } = this.#options;
    const nowMs = clock.monotonicMs();
    const hasStood = nowMs - this.#beatMs > settings.everyMs * (settings.goneBeats - 1);
    this.#beatMs = nowMs;
    this.#announce("here");
    for (const member of members.all) {
      // After this process was suspended, a missing announcement does not mean that the router is
      // gone.
      if (hasStood) member.heardMs = nowMs;
      const silentMs = nowMs - member.heardMs;
      if (silentMs > member.everyMs * settings.goneBeats) this.#gone(member.router);
    }
  }

  #hearState({ data }: BusMessage): void {
    const { cluster, members, ingest } = this.#options;
    const said = this.#ofOthers(readAnnouncement(data, cluster));
    if (said === null) return;
    if (said.kind === "bye") {
      this.#gone(said.router);
      return;
    }
    const member = this.#heard(said.router);
    if (member === null) return;
    member.everyMs = said.everyMs;
    members.seen(member, said.snapshots);
    for (const { source, sequence, digests } of said.snapshots) {
      ingest.compare(source, sequence, digests);
    }
    for (const set of said.thresholds) {
      if (this.#thresholds.take(set)) this.#applyThresholds(set.model);
    }
    this.#compareRequests(member, said.requests);
    if (said.kind === "hello") this.#answerSoon();
  }

  /**
   * Returns a message of another router, and null for one of this router or an unreadable one.
   * Counts unreadable messages.
   */
  #ofOthers<Read extends { readonly router: RouterId }>(read: Read | null): Read | null {
    if (read === null) this.#counts.refused++;
    return read?.router === this.#options.self ? null : read;
  }

  /**
   * Records that a message of `router` arrived. Returns null if it is new and the limit of routers
   * is reached.
   */
  #heard(router: RouterId): Replica | null {
    const { members, clock, settings } = this.#options;
    this.#counts.received++;
    this.#keepOrphans(router);
    return members.heard(router, settings.everyMs, clock.monotonicMs());
  }

  #compareRequests(member: Replica, said: Announcement["requests"]): void {
    const counted = this.#owners.sumOf(member.router);
    const isSame = counted.requests === said.requests && counted.mix === said.mix;
    member.differs = isSame ? 0 : member.differs + 1;
    if (isSame) member.tolerance = DIFFERS_MIN;
    const { isNew } = member;
    member.isNew = false;
    if (member.isAsked || isSame || (!isNew && member.differs < member.tolerance)) return;
    member.isAsked = true;
    member.differs = 0;
    // A request on a worker unknown to this router makes the checksums differ permanently. Fetch
    // the list less often each time.
    if (!isNew) member.tolerance = Math.min(member.tolerance * 2, DIFFERS_MAX);
    this.#counts.lists++;
    const taking = this.#lists.take(member.router, this.#stopping.signal).catch(() => false);
    const run = taking.then(() => {
      member.isAsked = false;
      this.#running.delete(run);
    });
    this.#running.add(run);
  }

  #hearLoad({ data }: BusMessage): void {
    const read = this.#ofOthers(readLoadEvents(data, this.#context));
    if (read === null || this.#heard(read.router) === null) return;
    for (const news of read.news) this.load.hear(read.router, news);
  }

  #hearOutput({ data }: BusMessage): void {
    const read = this.#ofOthers(readOutput(data));
    if (read === null || this.#heard(read.router) === null) return;
    this.load.hearOutput(read.router, read.news);
  }

  #gone(router: RouterId): void {
    const { members, clock, settings, log } = this.#options;
    if (members.get(router) === null) return;
    members.delete(router);
    const { requests } = this.#owners.sumOf(router);
    log("info", "replica gone", { router, requests });
    const timer = clock.after(settings.orphanMs, () => {
      this.#orphans.delete(router);
      const ids = Array.from(this.#owners.idsOf(router), ([id]) => id);
      this.#counts.orphansEnded += this.load.end(ids);
    });
    this.#keepOrphans(router);
    this.#orphans.set(router, timer);
  }

  #keepOrphans(router: RouterId): void {
    this.#orphans.get(router)?.[Symbol.dispose]();
    this.#orphans.delete(router);
  }

  #answerSoon(): void {
    const { clock, random } = this.#options;
    this.#answer ??= clock.after(randomBelow(random, ANSWER_WITHIN_MS), () => {
      this.#answer = null;
      this.#announce("here");
    });
  }

  #join({ worker, model }: Target): void {
    this.#names.set(workerNumber(worker), worker);
    for (const member of this.#options.members.all) member.tolerance = DIFFERS_MIN;
    this.#applyThresholds(model);
  }

  #leave({ worker }: Target): void {
    const isThere = this.#options.table.targets.some((target) => target.worker === worker);
    if (!isThere) this.#names.delete(workerNumber(worker));
  }

  #applyThresholds(model: string): void {
    const thresholds = this.#thresholds.of(model);
    if (thresholds !== null) this.#options.applyThresholds(model, thresholds);
  }
}

interface SnapshotServerOptions {
  readonly bus: Bus;
  readonly clock: Clock;
  readonly random: Random;
  readonly index: PrefixIndex;
  readonly ingest: ResidencyIngest;
  /** Subject of snapshot requests, with `*` in place of worker and rank. */
  readonly subject: string;
}

interface Kept {
  readonly source: ResidencySource;
  readonly sequence: number;
  readonly isDeviceKnown: boolean;
  readonly parts: readonly (readonly ResidencyRun[])[];
  askedMs: number;
}

/** Maximum snapshots served at one time. Further requests get the reply `busy`. */
const KEPT_MAX = 4;
/** Time without a request for a page after which a snapshot is dropped. */
const KEPT_MS = 5_000;
const RETRY_MS = 500;
const PART_BYTES_MAX = 512 * 1024;

/**
 * Serves snapshots of workers' blocks to other routers, in the format of agents. A router that
 * joins late then does not have to query each agent.
 */
class SnapshotServer implements Disposable {
  readonly #options: SnapshotServerOptions;
  readonly #subscription: Subscription;
  readonly #kept = new Map<bigint, Kept>();
  served = 0;

  constructor(options: SnapshotServerOptions) {
    this.#options = options;
    this.#subscription = options.bus.subscribe(options.subject, (message) => this.#take(message));
  }

  [Symbol.dispose](): void {
    this.#subscription.unsubscribe();
    this.#kept.clear();
  }

  #take({ subject, data, reply }: BusMessage): void {
    if (reply === null) return;
    const [rank, worker] = subject.split(".").reverse();
    const question = decodeQuery(data);
    if (!question.ok || worker === undefined || !isWorkerId(worker)) return;
    const followed = this.#options.ingest.find(worker, Number(rank));
    const answer = this.#answer(question.value, followed);
    this.#options.bus.publish(reply, encodeAnswer(answer));
  }

  #answer(question: ResidencyQuery, followed: FollowedSource | null): ResidencyAnswer {
    if (followed === null)
      return { kind: "refused", why: "this router does not follow that worker" };
    const { source } = followed;
    const { incarnation } = question;
    if (incarnation !== null && incarnation !== source.incarnation) {
      return { kind: "other_incarnation", source };
    }
    if (question.kind === "range") return { kind: "refused", why: "this router keeps no ranges" };
    if (question.snapshot !== null) return this.#part(question.snapshot, question.part, source);
    if (!followed.isKnown)
      return { kind: "refused", why: "the worker's blocks are not completely known" };
    return this.#begin(followed);
  }

  #begin({ source, target, sequence, isDeviceKnown }: FollowedSource): ResidencyAnswer {
    const { clock, random, index } = this.#options;
    const nowMs = clock.monotonicMs();
    for (const [id, { askedMs }] of this.#kept) {
      if (nowMs - askedMs > KEPT_MS) this.#kept.delete(id);
    }
    if (this.#kept.size >= KEPT_MAX) return { kind: "busy", source, retryMs: RETRY_MS };
    const snapshot = (BigInt(random.u32()) << 32n) | BigInt(random.u32());
    const bytesMax = Math.min(PART_BYTES_MAX, this.#options.bus.payloadBytesMax);
    const runs = Array.from(index.dump(target), ({ tier, parent, hashes }) => {
      return { tier, parent, hashes: hashes.slice() };
    });
    const parts = [...snapshotParts(runs, bytesMax)];
    this.#kept.set(snapshot, { source, sequence, isDeviceKnown, parts, askedMs: nowMs });
    this.served++;
    return this.#part(snapshot, 0, source);
  }

  #part(snapshot: bigint, part: number, now: ResidencySource): ResidencyAnswer {
    const kept = this.#kept.get(snapshot);
    const runs = kept?.parts[part];
    if (kept === undefined || runs === undefined) return { kind: "no_snapshot", source: now };
    kept.askedMs = this.#options.clock.monotonicMs();
    const isLast = part === kept.parts.length - 1;
    if (isLast) this.#kept.delete(snapshot);
    const { source, sequence, isDeviceKnown } = kept;
    return { kind: "snapshot", source, snapshot, sequence, part, isLast, isDeviceKnown, runs };
  }
}
