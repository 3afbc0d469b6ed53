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
import type { RetentionLedger } from "../store/index/index.ts";
import type { Grant, Lifecycle, LifecycleReport, OnProgress, Remember } from "../store/index.ts";
import { type AuditSink, IDLE_MS, Recorder, within } from "./audit-log.ts";
import {
  type BoundIssuer,
  type Gate,
  grantOf,
  proveIssuer,
  refusalAtGate,
  refusalOfUnreadable,
} from "./authorize.ts";
import {
  blocksOf,
  type Command,
  type CommandType,
  type Operation,
  type Refusal,
  type Sender,
  type UnnamedBlock,
} from "./command.ts";
import {
  CarriedCommands,
  Fences,
  IssuerOrder,
  issuerAccount,
  type LanePosition,
  type Running,
  RunningCommands,
  SignedIds,
  scopeOf,
} from "./command-memory.ts";
import { type CommandHead, commandDigest, decodeCommand, NO_HEAD } from "./decode-command.ts";
import {
  finalReceipt,
  type Receipt,
  type ReceiptHead,
  refusedReceipt,
  runningReceipt,
  unfinishedReceipt,
} from "./receipt.ts";

/** Limits of the control plane from the current configuration. */
export interface ControlLimits {
  /**
   * Maximum commands per second of one account, or of one issuer if the transport knows no account.
   */
  readonly commandsPerSecond: number;
  readonly commandsBurst: number;
  /** Types of commands that this agent accepts by broadcast. */
  readonly broadcast: readonly CommandType[];
}

export interface SubmitOptions {
  /** Id for a command that has none. Set if the transport may deliver the command twice. */
  readonly id?: string;
  /** Signature received with the command; see `signedBytes`. Null or absent: not signed. */
  readonly signature?: string | null;
  /**
   * Source of event-loop turns in which the command is decoded and started. Commands with the same
   * source keep their order. Absent: run immediately.
   */
  readonly source?: TurnSource;
  /** Called during a long command, at most once a second, with a receipt of status `running`. */
  readonly onProgress?: (receipt: Receipt) => void;
}

export interface ControlStats {
  /** Numbers of commands carried out, by type and status, for example `Cache/ok`. */
  readonly commands: Readonly<Record<string, number>>;
  /** Numbers of refused commands, by code of `REFUSALS`. */
  readonly refused: Readonly<Record<string, number>>;
  readonly duplicates: number;
  readonly running: number;
  readonly auditDropped: number;
  /** Why the audit log cannot be written. Null if it can, or if there is none. */
  readonly auditFailure: string | null;
}

/*
 * How a command is stored, so that a pin is not counted twice whenever the process ends:
 *
 * 1. Commands with a count (Cache, Pause, RenewLease): in the turn in which the lifecycle changes
 *    pins and leases, it calls `remember`, which adds the command's row to the ledger. The row has
 *    a `running` receipt, or the final one if only the commit is pending. The ledger commits all
 *    writes of a turn in one transaction, so that the change and the command survive together or
 *    not at all.
 * 2. The lifecycle awaits the durable commit. Unless the final receipt is stored already, it is
 *    written then, with a second commit that need not survive a loss of power. The answer follows.
 *    If the ledger hangs, the wait ends after some seconds and the receipt is not `durable`.
 *
 * If the process dies before the commit of 1, nothing happened and a repetition is carried out.
 * Between 1 and 2, a repetition gets `partial` with the reason `interrupted`, and the change exists
 * once. After 2, it gets the same receipt, or the one of the state between if power fails. The
 * other commands are idempotent and written at 2 only: if interrupted before, a repetition carries
 * them out again and completes them.
 */

export interface ControlPlaneOptions {
  readonly lifecycle: Lifecycle;
  /**
   * Stores receipts for the next process. Null: receipts are lost when the process ends, as pins
   * and leases are.
   */
  readonly ledger: RetentionLedger | null;
  readonly clock: Clock;
  readonly events: EventLog;
  readonly log: Logger;
  readonly workerId: string;
  readonly incarnation: bigint;
  /** Returns the current limits. Called for each command. */
  readonly limits: () => ControlLimits;
  /** Returns the issuers that must prove their names. Called for each command. */
  readonly issuers: () => readonly BoundIssuer[];
  /** Audit log; the control plane closes it. Null: commands are not recorded. */
  readonly audit: AuditSink | null;
}

/** A command that is being processed, with its state. */
interface PendingCommand {
  readonly command: Command;
  readonly unnamed: readonly UnnamedBlock[];
  readonly head: ReceiptHead;
  readonly sender: Sender;
  /** Scope within which the command's id, epoch and number count: issuer and account. */
  readonly scope: string;
  /** Digest of the command's content. Null if the command has no id. */
  readonly digest: string | null;
  readonly isSigned: boolean;
  readonly startedMs: number;
  readonly onProgress: (receipt: Receipt) => void;
  progress: Receipt["progress"] | null;
  /** True once the command is in the ledger. A repetition must then not be carried out. */
  isNoted: boolean;
  /**
   * The expected result and its receipt, if they were written to the ledger together with the
   * change. Otherwise null.
   */
  expected: { readonly report: LifecycleReport; readonly receipt: Receipt } | null;
}

const PROGRESS_MS = 1_000;
const PLAIN = { id: null, issuer: null, epoch: null, seq: null, notAfterS: null, owner: null };

/**
 * The entry point for commands of every transport: decodes, authorizes, limits, deduplicates,
 * fences, carries out, stores, and writes the audit log. Guarantees:
 *
 * - It never throws because of a command's content, and answers each command with one receipt.
 * - A command with an id is carried out once, also across restarts; repetitions of an executing
 *   command get its receipt when it ends.
 * - Commands of one issuer change pins, leases and marks in order of arrival where the order
 *   matters: commands on one lease, and commands on blocks (Cache, Think). A Pause takes effect
 *   once its blocks are on SSD; only commands on its lease and commands that remove blocks wait for
 *   it. Warm, Prune and Flush wait for earlier commands and delay no later one.
 * - Commands beyond a limit are refused, not queued.
 */
export class ControlPlane implements AsyncDisposable {
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

  /**
   * Processes a command and returns its receipt. `contentType` is the media type of the body; by
   * default JSON.
   */
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
    const refusal = {
      code: "busy",
      message: "too many commands of this sender are waiting",
    } as const;
    return this.#refuse(this.#headOf(NO_HEAD, sender), refusal, sender, startedMs, null);
  }

  /** Decodes a command, then admits it. Each step is short enough for one time slice. */
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

  /**
   * Returns the receipt or the progress of the command with this id, or null. `issuer` null: the
   * command of any issuer. If several senders used the id, prefers the command of `account`.
   */
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

  /**
   * Removes the stored epoch, number and proof of an issuer, for all accounts. Its next command is
   * then accepted with any `epoch`. Returns the number of removed scopes.
   */
  unfence(issuer: string, sender: Sender): number {
    const scopes = this.#fences.forget(issuer);
    this.#carried.unfence(issuer);
    const about = { type: "Unfence", blocks: null, names: [issuer], reason: null, elapsedMs: 0 };
    this.note({ ...about, status: "ok", counts: { scopes: scopes.length } }, sender);
    return scopes.length;
  }

  /**
   * Writes an operator's action that did not arrive as a command to the audit log. Never waits or
   * throws.
   */
  note(operation: Operation, sender: Sender): void {
    this.#recorder.operation(operation, sender);
  }

  /** The current limits. */
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
      log.error("commands still executing at shutdown, abandoning them", {
        commands: this.#running.size,
      });
    }
    await this.#options.audit?.[Symbol.asyncDispose]();
  }

  /**
   * Admits a command and starts it. Everything up to the call of the lifecycle runs in one turn of
   * the event loop, so that commands keep their order.
   */
  #take(
    taken: Pick<PendingCommand, "command" | "unnamed" | "sender" | "startedMs" | "isSigned">,
    { onProgress = () => undefined }: SubmitOptions,
  ): Receipt | Promise<Receipt> {
    const { command, unnamed, sender, startedMs } = taken;
    const head = this.#headOf(command, sender);
    const scope = scopeOf(sender, head.issuer);
    const pending: PendingCommand = {
      ...taken,
      head,
      scope,
      onProgress,
      digest: command.id === null ? null : commandDigest(command, unnamed),
      progress: null,
      isNoted: false,
      expected: null,
    };
    const refuse = (refusal: Refusal) => this.#refuse(head, refusal, sender, startedMs, command);
    if (this.#stop.signal.aborted)
      return refuse({ code: "busy", message: "the agent is stopping" });
    const refusal = refusalAtGate(command, sender, head.issuer, this.#gate());
    if (refusal !== null) return refuse(refusal);
    const repeated = this.#repetition(pending);
    if (repeated !== null) return repeated;
    const { epoch, seq } = command;
    const outOfTurn =
      this.#fences.check(scope, epoch, seq) ??
      this.#running.refusal(scope, blocksOf(command)) ??
      this.#replay(pending);
    if (outOfTurn !== null) return refuse(outOfTurn);
    const takeBack = this.#fences.advance(scope, epoch, seq);
    return this.#start(pending, () => {
      takeBack();
      if (pending.isSigned) this.#signedIds.remove(scope, command.id!, command.notAfterS!);
    });
  }

  /**
   * Returns a refusal if this signed command was accepted before but its receipt has been
   * forgotten; otherwise null.
   */
  #replay({ command, scope, isSigned }: PendingCommand): Refusal | null {
    if (!isSigned) return null;
    const { id, notAfterS } = command;
    if (this.#signedIds.has(scope, id!, notAfterS!)) {
      return {
        code: "replayed",
        message: `${id} was accepted before: sign the command again with another id`,
      };
    }
    const nowS = this.#options.clock.wallMs() / 1_000;
    if (this.#signedIds.add(scope, id!, notAfterS!, nowS)) return null;
    return { code: "busy", message: "the limit of remembered signed commands is reached" };
  }

  #gate(): Gate {
    const { clock, limits } = this.#options;
    return { clock, limits: limits(), buckets: this.#buckets };
  }

  /**
   * Returns the receipt of the earlier execution if this command is a repetition, otherwise null.
   */
  #repetition(pending: PendingCommand): Receipt | Promise<Receipt> | null {
    const { command, head, sender, scope, startedMs } = pending;
    if (command.id === null) return null;
    const refuse = (refusal: Refusal) => this.#refuse(head, refusal, sender, startedMs, command);
    const again = (receipt: Receipt): Receipt => {
      this.#recorder.duplicate(command, receipt, sender, this.#elapsed(startedMs));
      return { ...receipt, duplicate: true };
    };
    const running = this.#running.get(scope, command.id);
    const digest = running?.digest ?? this.#carried.memory.digest(scope, command.id);
    if (digest !== null && digest !== pending.digest) {
      return refuse({
        code: "id_reused",
        message: "this id belongs to a different command",
      });
    }
    if (running !== null) {
      const message = "too many repetitions are waiting for executing commands";
      return this.#running.wait(running)?.then(again) ?? refuse({ code: "busy", message });
    }
    const receipt = this.#carried.memory.get(scope, command.id);
    return receipt === null ? null : again(receipt);
  }

  #start(pending: PendingCommand, takeBack: () => void): Promise<Receipt> {
    const { command, head, scope, digest, startedMs } = pending;
    const { promise, resolve } = Promise.withResolvers<Receipt>();
    const running: Running = {
      issuer: scope,
      id: command.id,
      digest,
      blocks: blocksOf(command),
      receipt: promise,
      now: () => runningReceipt(head, pending.progress, this.#elapsed(startedMs)),
    };
    this.#running.add(running);
    const finish = (receipt: Receipt) => {
      // The command memory already has the receipt, so at every moment a repetition finds the
      // command in one of the two.
      this.#running.remove(running);
      resolve(receipt);
    };
    this.#carryOut(pending, takeBack).then(finish, (thrown) => {
      finish(this.#fail(pending, thrown));
    });
    return promise;
  }

  async #carryOut(pending: PendingCommand, takeBack: () => void): Promise<Receipt> {
    const { command, head, unnamed, startedMs } = pending;
    let report: LifecycleReport;
    try {
      report = await this.#inTurn(pending);
    } catch (thrown) {
      const failed = this.#fail(pending, thrown);
      if (pending.isNoted) return this.#carried.remember(pending, failed);
      takeBack();
      return failed;
    }
    const elapsedMs = this.#elapsed(startedMs);
    const { expected } = pending;
    let receipt: Receipt;
    if (expected?.report === report) {
      receipt = { ...expected.receipt, elapsed_ms: elapsedMs };
      this.#carried.keep(pending, receipt);
    } else {
      receipt = finalReceipt(head, command, unnamed, report, elapsedMs);
      receipt = await this.#carried.remember(pending, receipt);
    }
    this.#recorder.carriedOut(command, receipt, pending.sender);
    return receipt;
  }

  /** Logs an internal fault and returns a receipt that reports it. */
  #fail({ command, head, sender, startedMs }: PendingCommand, thrown: unknown): Receipt {
    const message = messageOf(thrown);
    this.#options.log.error("command failed", { type: command.type, error: message });
    return this.#refuse(head, { code: "internal", message }, sender, startedMs, command);
  }

  /**
   * Calls the lifecycle when all earlier commands that must come first have changed pins and
   * leases; immediately if there are none.
   */
  async #inTurn(pending: PendingCommand): Promise<LifecycleReport> {
    const { before, done } = this.#order.next(pending.scope, lanePositionOf(pending.command));
    try {
      if (before !== null) await before;
      return await this.#call(pending, done);
    } finally {
      done();
    }
  }

  #call(pending: PendingCommand, applied: () => void): Promise<LifecycleReport> {
    const { command, head, unnamed, startedMs } = pending;
    let toldMs = startedMs;
    return carryOut(this.#options.lifecycle, command, {
      issuer: head.issuer,
      grant: grantOf(pending.sender),
      signal: this.#stop.signal,
      remember: (results, expected) => {
        if (isCounted(command)) {
          pending.isNoted = true;
          const elapsedMs = this.#elapsed(startedMs);
          if (expected !== undefined) {
            const receipt = finalReceipt(head, command, unnamed, expected, elapsedMs);
            pending.expected = { report: expected, receipt };
          }
          const unfinished = () => unfinishedReceipt(head, command, unnamed, results, elapsedMs);
          this.#carried.note(pending, () => pending.expected?.receipt ?? unfinished());
        }
        applied();
      },
      onProgress: ({ doneBlocks, doneBytes, totalBlocks }) => {
        pending.progress = {
          done_blocks: doneBlocks,
          total_blocks: totalBlocks,
          bytes: doneBytes,
        };
        const nowMs = this.#options.clock.monotonicMs();
        if (nowMs - toldMs < PROGRESS_MS) return;
        toldMs = nowMs;
        pending.onProgress(runningReceipt(head, pending.progress, this.#elapsed(startedMs)));
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
    this.#recorder.refused(command, receipt, refusal.code, sender);
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

interface CarryOutOptions {
  readonly issuer: string;
  readonly grant: Grant;
  /** Called in the turn in which the lifecycle changes pins, leases or marks; see `Lifecycle`. */
  readonly remember: Remember;
  readonly onProgress: OnProgress;
  /** When aborted, long commands end early. */
  readonly signal: AbortSignal;
}

/** Name of the lane for commands that pin or mark blocks. */
const BLOCKS = "blocks";

/**
 * Returns the order of a command relative to others of its issuer. A Pause changes leases only when
 * its blocks are on SSD, and a purge traverses its blocks; commands on other leases, and pins, do
 * not wait for them. Commands that remove or mark blocks wait for all earlier commands that may
 * retain these blocks. No command waits for a long one (Warm, Prune, Flush).
 */
function lanePositionOf(command: Command): LanePosition {
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
 * Returns true if executing the command twice would count a pin twice or extend a time. Such a
 * command must be stored in the same transaction as its change. The other commands are idempotent
 * and are carried out again if interrupted.
 */
function isCounted({ type }: Command): boolean {
  return type === "Cache" || type === "Pause" || type === "RenewLease";
}

/** Calls the lifecycle's operation for the command. */
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
