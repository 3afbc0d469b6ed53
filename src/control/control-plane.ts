import {
  type Clock,
  type CommandOrigin,
  messageOf,
  runAtOnce,
  TokenBuckets,
  type TurnSource,
} from "../core/index.ts";
import type { EventLog } from "../observability/activity/index.ts";
import type { Logger } from "../observability/index.ts";
import type { HoldLedger } from "../store/index/index.ts";
import type { Grant, Lifecycle, LifecycleReport, OnProgress, Remember } from "../store/index.ts";
import { type AuditLog, IDLE_MS, Recorder, within } from "./audit-log.ts";
import {
  blocksOf,
  type Command,
  type CommandType,
  type Operation,
  type Refusal,
  type Sender,
  type UnnamedBlock,
} from "./command.ts";
import { CarriedCommands, type Running, RunningCommands } from "./command-memory.ts";
import { type CommandHead, commandDigest, decodeCommand, NO_HEAD } from "./decode-command.ts";
import { type Gate, grantOf, refusalAtGate, refusalOfUnreadable } from "./gate.ts";
import { type BoundIssuer, proveIssuer } from "./issuer-proof.ts";
import { Fences, IssuerOrder, issuerAccount, type Place, SignedIds, scopeOf } from "./issuers.ts";
import {
  finalReceipt,
  type Receipt,
  type ReceiptHead,
  refusedReceipt,
  runningReceipt,
  unfinishedReceipt,
} from "./receipt.ts";

export interface ControlPlaneOptions {
  readonly lifecycle: Lifecycle;
  /** Null: what was carried out is forgotten with the process, as the holds are. */
  readonly ledger: HoldLedger | null;
  readonly clock: Clock;
  readonly events: EventLog;
  readonly log: Logger;
  readonly workerId: string;
  readonly incarnation: bigint;
  /** Asked for each command. */
  readonly limits: () => ControlLimits;
  /** Those that have to prove their names. Asked for each command. */
  readonly issuers: () => readonly BoundIssuer[];
  /** Null: none is kept. Closed with the control plane. */
  readonly audit: AuditLog | null;
}

/** One command on its way through. */
interface Passage {
  readonly command: Command;
  readonly unnamed: readonly UnnamedBlock[];
  readonly head: ReceiptHead;
  readonly sender: Sender;
  /** Of its id, epoch and number. */
  readonly scope: string;
  /** Of what it asks for; null where it has no id. */
  readonly digest: string | null;
  readonly isSigned: boolean;
  readonly startedMs: number;
  readonly onProgress: (receipt: Receipt) => void;
  progress: Receipt["progress"] | null;
  /** It is written down: a repetition must not be carried out. */
  isNoted: boolean;
  /** The report that was written down with that change as the one to come; null: none was. */
  expected: LifecycleReport | null;
  /** The receipt that says so, as it was written down; null: none was. */
  written: Receipt | null;
}

const PROGRESS_MS = 1_000;
const PLAIN = { id: null, issuer: null, epoch: null, seq: null, notAfterS: null, owner: null };

export function createControlPlane(options: ControlPlaneOptions): ControlPlane {
  return new Plane(options);
}

class Plane implements ControlPlane {
  readonly #options: ControlPlaneOptions;
  readonly #carried: CarriedCommands;
  readonly #fences: Fences;
  readonly #signedIds = new SignedIds();
  readonly #recorder: Recorder;
  readonly #buckets = new TokenBuckets();
  readonly #order = new IssuerOrder();
  readonly #running = new RunningCommands();
  readonly #stop = new AbortController();

  constructor(options: ControlPlaneOptions) {
    this.#options = options;
    this.#carried = new CarriedCommands(options.ledger, options.clock);
    this.#fences = new Fences(options.ledger?.contents.issuers ?? []);
    this.#recorder = new Recorder(options);
  }

  async submit(
    body: Uint8Array,
    contentType: string | null,
    sender: Sender,
    options: SubmitOptions = {},
  ): Promise<Receipt> {
    const steps = this.#steps(body, contentType, sender, options);
    if (options.source === undefined) return runAtOnce(steps);
    const receipt = options.source.run(steps);
    if (receipt !== null) return receipt;
    const startedMs = this.#options.clock.monotonicMs();
    const refusal = { word: "busy", words: "too many commands of one sender wait" } as const;
    return this.#refuse(this.#headOf(NO_HEAD, sender), refusal, sender, startedMs, null);
  }

  /** Reads a command, then takes it: either is short enough for a slice. */
  *#steps(
    body: Uint8Array,
    contentType: string | null,
    sender: Sender,
    options: SubmitOptions,
  ): Generator<void, Receipt | Promise<Receipt>> {
    const startedMs = this.#options.clock.monotonicMs();
    const decoded = decodeCommand(body, contentType);
    yield;
    if (decoded.ok) {
      const { unnamed, command: own } = decoded;
      const { id = null, signature = null } = options;
      const proof = proveIssuer(
        { command: own, issuer: own.issuer ?? sender.name, sender, body, contentType, signature },
        { ...this.#options, wasProven: (issuer) => this.#fences.wasProven(issuer) },
      );
      if (!proof.ok) {
        const head = this.#headOf(own, sender);
        return this.#refuse(head, proof.refusal, sender, startedMs, own);
      }
      const command = own.id === null && id !== null ? { ...own, id } : own;
      return this.#take({ command, unnamed, startedMs, ...proof }, options);
    }
    const head = this.#headOf(decoded.head, sender);
    const refusal = refusalOfUnreadable(sender, this.#gate()) ?? decoded.refusal;
    return this.#refuse(head, refusal, sender, startedMs, null);
  }

  async flush(sender: Sender): Promise<Receipt> {
    const startedMs = this.#options.clock.monotonicMs();
    const command: Command = { ...PLAIN, type: "Flush" };
    return this.#take({ command, unnamed: [], sender, startedMs, isSigned: false }, {});
  }

  find(id: string, issuer: string | null, account?: string): Receipt | null {
    if (issuer !== null) {
      const proven = scopeOf({ account: issuerAccount(issuer) }, issuer);
      for (const scope of [scopeOf({ account }, issuer), issuer, proven]) {
        const own = this.#running.get(scope, id)?.now() ?? this.#carried.memory.get(scope, id);
        if (own !== null) return own;
      }
    }
    const latest = this.#running.find(id)?.now() ?? this.#carried.memory.find(id);
    return issuer === null || latest?.issuer === issuer ? latest : null;
  }

  unfence(issuer: string, sender: Sender): number {
    const scopes = this.#fences.forget(issuer);
    this.#carried.unfence(issuer);
    const about = { type: "Unfence", blocks: null, names: [issuer], reason: null, elapsedMs: 0 };
    this.note({ ...about, status: "ok", counts: { scopes: scopes.length } }, sender);
    return scopes.length;
  }

  note(operation: Operation, sender: Sender): void {
    this.#recorder.operation(operation, sender);
  }

  limits(): ControlLimits {
    return this.#options.limits();
  }

  stats(): ControlStats {
    return {
      ...this.#recorder.counts(),
      running: this.#running.size,
      auditDropped: this.#options.audit?.dropped ?? 0,
      auditFailure: this.#options.audit?.failure ?? null,
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    const { clock, log } = this.#options;
    if (
      (await within(
        clock,
        IDLE_MS,
        this.#running.idle().then(() => true),
      )) === null
    ) {
      log.error("commands do not end, going on without them", { commands: this.#running.size });
    }
    await this.#options.audit?.[Symbol.asyncDispose]();
  }

  /** Up to where it is carried out all of this is one turn: commands keep their order. */
  #take(
    taken: Pick<Passage, "command" | "unnamed" | "sender" | "startedMs" | "isSigned">,
    { onProgress = () => undefined }: SubmitOptions,
  ): Receipt | Promise<Receipt> {
    const { command, unnamed, sender, startedMs } = taken;
    const head = this.#headOf(command, sender);
    const scope = scopeOf(sender, head.issuer);
    const passage: Passage = {
      ...{ ...taken, head, scope, onProgress },
      digest: command.id === null ? null : commandDigest(command, unnamed),
      progress: null,
      isNoted: false,
      expected: null,
      written: null,
    };
    const refuse = (refusal: Refusal) => this.#refuse(head, refusal, sender, startedMs, command);
    if (this.#stop.signal.aborted) return refuse({ word: "busy", words: "the agent stops" });
    const refusal = refusalAtGate(command, sender, head.issuer, this.#gate());
    if (refusal !== null) return refuse(refusal);
    const repeated = this.#repetition(passage);
    if (repeated !== null) return repeated;
    const { epoch, seq } = command;
    const outOfTurn =
      this.#fences.check(scope, epoch, seq) ??
      this.#running.refusal(scope, blocksOf(command)) ??
      this.#replay(passage);
    if (outOfTurn !== null) return refuse(outOfTurn);
    const takeBack = this.#fences.advance(scope, epoch, seq);
    return this.#start(passage, () => {
      takeBack();
      if (passage.isSigned) this.#signedIds.remove(scope, command.id!, command.notAfterS!);
    });
  }

  /** Why a signed command is not taken though its receipt is not known; null if it is. */
  #replay({ command, scope, isSigned }: Passage): Refusal | null {
    if (!isSigned) return null;
    const { id, notAfterS } = command;
    if (this.#signedIds.has(scope, id!, notAfterS!)) {
      return { word: "replayed", words: `${id} was taken before: sign it anew with another id` };
    }
    const nowS = this.#options.clock.wallMs() / 1_000;
    if (this.#signedIds.add(scope, id!, notAfterS!, nowS)) return null;
    return { word: "busy", words: "too many signed commands are remembered" };
  }

  #gate(): Gate {
    const { clock, limits } = this.#options;
    return { clock, limits: limits(), buckets: this.#buckets };
  }

  /** The receipt of the same command before; null where there was none. */
  #repetition(passage: Passage): Receipt | Promise<Receipt> | null {
    const { command, head, sender, scope, startedMs } = passage;
    if (command.id === null) return null;
    const refuse = (refusal: Refusal) => this.#refuse(head, refusal, sender, startedMs, command);
    const again = (receipt: Receipt): Receipt => {
      this.#recorder.duplicate(command, receipt, sender, this.#elapsed(startedMs));
      return { ...receipt, duplicate: true };
    };
    const running = this.#running.get(scope, command.id);
    const digest = running?.digest ?? this.#carried.memory.digest(scope, command.id);
    if (digest !== null && digest !== passage.digest) {
      return refuse({
        word: "id_reused",
        words: "the command of this id asked for something else",
      });
    }
    if (running !== null) {
      const words = "too many wait for commands at work";
      return this.#running.wait(running)?.then(again) ?? refuse({ word: "busy", words });
    }
    const receipt = this.#carried.memory.get(scope, command.id);
    return receipt === null ? null : again(receipt);
  }

  #start(passage: Passage, takeBack: () => void): Promise<Receipt> {
    const { command, head, scope, digest, startedMs } = passage;
    const { promise, resolve } = Promise.withResolvers<Receipt>();
    const running: Running = {
      issuer: scope,
      id: command.id,
      digest,
      blocks: blocksOf(command),
      receipt: promise,
      now: () => runningReceipt(head, passage.progress, this.#elapsed(startedMs)),
    };
    this.#running.add(running);
    const finish = (receipt: Receipt) => {
      // It is in memory before: a repetition finds it here or there.
      this.#running.remove(running);
      resolve(receipt);
    };
    this.#carryOut(passage, takeBack).then(finish, (thrown) => {
      finish(this.#fail(passage, thrown));
    });
    return promise;
  }

  async #carryOut(passage: Passage, takeBack: () => void): Promise<Receipt> {
    const { command, head, unnamed, startedMs } = passage;
    let report: LifecycleReport;
    try {
      report = await this.#inTurn(passage);
    } catch (thrown) {
      const failed = this.#fail(passage, thrown);
      if (passage.isNoted) return this.#carried.remember(passage, failed);
      takeBack();
      return failed;
    }
    const isExpected = report === passage.expected;
    const elapsedMs = this.#elapsed(startedMs);
    let receipt =
      isExpected && passage.written !== null
        ? { ...passage.written, elapsed_ms: elapsedMs }
        : finalReceipt(head, command, unnamed, report, elapsedMs);
    if (!isExpected) receipt = await this.#carried.remember(passage, receipt);
    else this.#carried.keep(passage, receipt);
    this.#recorder.carriedOut(command, receipt, passage.sender);
    return receipt;
  }

  /** A bug of ours: said in the log and in the receipt. */
  #fail({ command, head, sender, startedMs }: Passage, thrown: unknown): Receipt {
    const words = messageOf(thrown);
    this.#options.log.error("a command failed", { type: command.type, error: words });
    return this.#refuse(head, { word: "internal", words }, sender, startedMs, command);
  }

  /** Waits for its turn where there is one to wait for; else calls the lifecycle in this one. */
  async #inTurn(passage: Passage): Promise<LifecycleReport> {
    const { before, done } = this.#order.next(passage.scope, placeOf(passage.command));
    try {
      if (before !== null) await before;
      return await this.#call(passage, done);
    } finally {
      done();
    }
  }

  #call(passage: Passage, applied: () => void): Promise<LifecycleReport> {
    const { command, head, unnamed, startedMs } = passage;
    let toldMs = startedMs;
    return carryOut(this.#options.lifecycle, command, {
      issuer: head.issuer,
      grant: grantOf(passage.sender),
      signal: this.#stop.signal,
      remember: (results, expected) => {
        if (isCounted(command)) {
          passage.isNoted = true;
          passage.expected = expected ?? null;
          const elapsedMs = this.#elapsed(startedMs);
          this.#carried.note(passage, () => {
            if (expected === undefined)
              return unfinishedReceipt(head, command, unnamed, results, elapsedMs);
            passage.written = finalReceipt(head, command, unnamed, expected, elapsedMs);
            return passage.written;
          });
        }
        applied();
      },
      onProgress: ({ doneBlocks, doneBytes, totalBlocks }) => {
        passage.progress = {
          done_blocks: doneBlocks,
          total_blocks: totalBlocks,
          bytes: doneBytes,
        };
        const nowMs = this.#options.clock.monotonicMs();
        if (nowMs - toldMs < PROGRESS_MS) return;
        toldMs = nowMs;
        passage.onProgress(runningReceipt(head, passage.progress, this.#elapsed(startedMs)));
      },
    });
  }

  #refuse(
    head: ReceiptHead,
    refusal: Refusal,
    sender: Sender,
    startedMs: number,
    command: Command | null,
  ): Receipt {
    const receipt = refusedReceipt(head, refusal, this.#elapsed(startedMs));
    this.#recorder.refused(command, receipt, refusal.word, sender);
    return receipt;
  }

  #headOf({ type, id, issuer }: CommandHead, sender: Sender): ReceiptHead {
    const { workerId, incarnation } = this.#options;
    return {
      id,
      type,
      worker_id: workerId,
      incarnation: incarnation.toString(),
      issuer: issuer ?? sender.name,
    };
  }

  #elapsed(startedMs: number): number {
    return Math.round((this.#options.clock.monotonicMs() - startedMs) * 1_000) / 1_000;
  }
}

/** Limits as the configuration has them now. */
export interface ControlLimits {
  /** Of one issuer, or of one account of the transport. */
  readonly commandsPerSecond: number;
  readonly commandsBurst: number;
  /** What may come by broadcast. */
  readonly broadcast: readonly CommandType[];
}

export interface SubmitOptions {
  /** Of a command that has none, where whatever brings it may bring it twice. */
  readonly id?: string;
  /** Of the command as it came: see `signedBytes`. Null or left out: it is not signed. */
  readonly signature?: string | null;
  /**
   * Whose slices of the event loop the command is read and begun in; those of one source keep their
   * order. Left out: at once.
   */
  readonly source?: TurnSource;
  /** Told at most once a second how far a long command is, by receipts with status `running`. */
  readonly onProgress?: (receipt: Receipt) => void;
}

export interface ControlStats {
  /** Commands carried out, by `type/status`: "Cache/ok". */
  readonly commands: Readonly<Record<string, number>>;
  /** Commands of which nothing was carried out, by the word of `REFUSALS`. */
  readonly refused: Readonly<Record<string, number>>;
  readonly duplicates: number;
  readonly running: number;
  readonly auditDropped: number;
  /** Why the audit log cannot be written; null where it can, or there is none. */
  readonly auditFailure: string | null;
}

/* How a command is remembered, so that a pin is not counted twice whenever the process may end:
 *
 * 1. Commands that count (Cache, Pause, RenewLease): in the turn in which the lifecycle changes
 *    holds it calls `remember`. There the command's row goes into the ledger, with a receipt that
 *    says `running`, or with the final one where no more than the commit is waited for. Ledgers
 *    commit all of a turn in one transaction: hold and command survive together, or neither does.
 * 2. The lifecycle awaits its durable commit. Then, unless it is there already, the row is put with
 *    the final receipt, and a second commit awaited that need not survive a loss of power. Only
 *    then it is answered. A ledger that hangs is waited for some seconds; the receipt is then not
 *    `durable`.
 *
 * Killed before the commit of 1: nothing happened, a repetition is carried out. Between 1 and 2: a
 * repetition gets `partial` with the reason `interrupted`, and the holds stand once. After 2: the
 * same receipt as before. Where the power fails behind 2 it may be the one of between. The other
 * commands bring about a state and are written at 2 alone: cut off before, they are carried out
 * again, which does no harm and ends what was begun.
 */

/**
 * The one way in for commands, whatever brought them: decodes, authorises, limits, deduplicates,
 * fences, carries out, remembers, and writes the audit log. Promises:
 *
 * - It never throws for what a command holds, and answers each with one receipt.
 * - A command with an id that was carried out is not carried out again, also after a restart; one
 *   that is at work answers all its repetitions when it is done.
 * - Commands of one issuer change holds and marks in the order in which they came where that makes
 *   a difference: those on one lease, and those on blocks (Cache, Think). A Pause, which holds its
 *   blocks once they are on SSD, is waited for by what is on its lease or removes, and by nothing
 *   else; Warm, Prune and Flush wait for those before them and hold up none behind them.
 * - What is beyond a limit is refused, not queued.
 */
export interface ControlPlane extends AsyncDisposable {
  /** `contentType`: of the body; JSON unless it says MessagePack. */
  submit(
    body: Uint8Array,
    contentType: string | null,
    sender: Sender,
    options?: SubmitOptions,
  ): Promise<Receipt>;
  /**
   * What is known of a command with this id (of this issuer, unless null), also while it runs;
   * where several sent one of that name, first what this account did.
   */
  find(id: string, issuer: string | null, account?: string): Receipt | null;
  flush(sender: Sender): Promise<Receipt>;
  /**
   * Forgets how far an issuer has come, of all accounts, and that it proved its name: its next
   * command is taken whatever its `epoch`. Returns how many scopes there were.
   */
  unfence(issuer: string, sender: Sender): number;
  /** Writes to the audit log what was done by another way than a command. Never waits or throws. */
  note(operation: Operation, sender: Sender): void;
  stats(): ControlStats;
  /** As they are now. */
  limits(): ControlLimits;
}

interface CarryOutOptions {
  readonly issuer: string;
  readonly grant: Grant;
  /** Called in the turn in which holds or marks change; see the port of the lifecycle. */
  readonly remember: Remember;
  readonly onProgress: OnProgress;
  /** Ends long commands early. */
  readonly signal: AbortSignal;
}

/** The lane of commands on blocks that are pinned and marked in it. */
const BLOCKS = "blocks";

/**
 * Where it stands among the commands of its issuer. A pause holds its blocks once they are on SSD,
 * and a purge walks over them: meanwhile commands on another lease, and pins while it is a pause,
 * do not wait. What removes or marks waits for all that may hold before it; nothing waits for what
 * is long.
 */
function placeOf(command: Command): Place {
  switch (command.type) {
    case "Cache":
      return { lanes: [BLOCKS], behind: [] };
    case "Think":
      return { lanes: [BLOCKS], behind: "all" };
    case "RenewLease":
      return { lanes: [`lease ${command.leaseId}`], behind: [] };
    case "Pause":
    case "RevokeLease":
      return { lanes: [`lease ${command.leaseId}`], behind: [BLOCKS] };
    case "Warm":
    case "Prune":
    case "Flush":
      return { lanes: [], behind: "all" };
    default:
      return command satisfies never;
  }
}

/**
 * Whether a repetition would count or reach further than the first: it has to be known from the
 * moment holds change. Of the others, which bring about a state, one that was cut off is carried
 * out again.
 */
function isCounted({ type }: Command): boolean {
  return type === "Cache" || type === "Pause" || type === "RenewLease";
}

/** Calls the operation that a command means. */
function carryOut(
  lifecycle: Lifecycle,
  command: Command,
  { issuer, grant, remember, onProgress, signal }: CarryOutOptions,
): Promise<LifecycleReport> {
  const origin: CommandOrigin = { issuer, command: command.id };
  const owner = command.owner ?? issuer;
  switch (command.type) {
    case "Warm": {
      const { target, sources } = command;
      return lifecycle.warm(command.blocks, { target, sources, onProgress, signal });
    }
    case "Prune":
      return lifecycle.prune(command.after, origin, { onProgress, signal });
    case "Cache":
      return cache(lifecycle, command, owner, remember);
    case "Think":
      return command.transient
        ? lifecycle.markTransient(command.blocks, origin, { grant, remember })
        : lifecycle.purgeTransient(command.blocks, origin, { remember });
    case "Pause": {
      const { leaseId: lease, ttlMs } = command;
      return lifecycle.pause(command.blocks, { lease, owner, ttlMs, grant, remember });
    }
    case "RenewLease":
      return lifecycle.renewLease(command.leaseId, command.ttlMs, { owner, grant, remember });
    case "RevokeLease":
      return lifecycle.revokeLease(command.leaseId, origin, { remember });
    case "Flush":
      return lifecycle.flush(origin);
    default:
      return command satisfies never;
  }
}

function cache(
  lifecycle: Lifecycle,
  { blocks, action }: Extract<Command, { type: "Cache" }>,
  owner: string,
  remember: Remember,
): Promise<LifecycleReport> {
  switch (action.kind) {
    case "pin":
      return lifecycle.pin(blocks, { owner, ttlMs: action.ttlMs, remember });
    case "unpin":
      return lifecycle.unpin(blocks, { owner, remember });
    case "retain": {
      const { priority, idleMs } = action;
      return lifecycle.retain(blocks, { owner, priority, idleMs, remember });
    }
    default:
      return action satisfies never;
  }
}
