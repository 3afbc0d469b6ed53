import { type Clock, messageOf, TokenBuckets } from "../core/index.ts";
import type { EventLog } from "../events/index.ts";
import type { HoldLedger } from "../index/index.ts";
import type { Logger } from "../observability/index.ts";
import type { Lifecycle, LifecycleReport } from "../tiers/index.ts";
import type { AuditLog } from "./audit-log.ts";
import { carryOut, isCounted, placeOf } from "./carry-out.ts";
import { blocksOf, type Command, type Sender, type UnnamedBlock } from "./command.ts";
import { commandDigest } from "./command-digest.ts";
import { CommandMemory, receiptText } from "./command-memory.ts";
import type { ControlLimits, ControlPlane, ControlStats, SubmitOptions } from "./control-plane.ts";
import { type CommandHead, decodeCommand } from "./decode-command.ts";
import { Fences } from "./fences.ts";
import { type Gate, refusalAtGate, refusalOfUnreadable } from "./gate.ts";
import { IssuerOrder } from "./issuer-order.ts";
import {
  finalReceipt,
  type ReceiptHead,
  refusedReceipt,
  runningReceipt,
  unfinishedReceipt,
} from "./make-receipt.ts";
import type { Operation } from "./operation.ts";
import type { Receipt } from "./receipt.ts";
import { Recorder } from "./recorder.ts";
import type { Refusal } from "./refusals.ts";
import { type Running, RunningCommands } from "./running.ts";
import { scopeOf } from "./scope.ts";
import { IDLE_MS, within } from "./within.ts";

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
/** How long an answer waits for the ledger. */
const COMMIT_MS = 5_000;
const PLAIN = { id: null, issuer: null, epoch: null, seq: null, notAfterS: null, owner: null };

export function createControlPlane(options: ControlPlaneOptions): ControlPlane {
  return new Plane(options);
}

class Plane implements ControlPlane {
  readonly #options: ControlPlaneOptions;
  readonly #memory: CommandMemory;
  readonly #fences: Fences;
  /** As far as the ledger has it: only by commands of which something came. */
  readonly #written: Fences;
  readonly #recorder: Recorder;
  readonly #buckets = new TokenBuckets();
  readonly #order = new IssuerOrder();
  readonly #running = new RunningCommands();
  readonly #stop = new AbortController();

  constructor(options: ControlPlaneOptions) {
    const contents = options.ledger?.contents;
    this.#options = options;
    this.#memory = new CommandMemory(contents?.commands ?? []);
    this.#fences = new Fences(contents?.issuers ?? []);
    this.#written = new Fences(contents?.issuers ?? []);
    this.#recorder = new Recorder(options);
  }

  async submit(
    body: Uint8Array,
    contentType: string | null,
    sender: Sender,
    options: SubmitOptions = {},
  ): Promise<Receipt> {
    const startedMs = this.#options.clock.monotonicMs();
    const decoded = decodeCommand(body, contentType);
    if (decoded.ok) {
      const { unnamed, command: own } = decoded;
      const { id = null } = options;
      const command = own.id === null && id !== null ? { ...own, id } : own;
      return this.#take(command, unnamed, sender, startedMs, options);
    }
    const head = this.#headOf(decoded.head, sender);
    const refusal = refusalOfUnreadable(sender, this.#gate()) ?? decoded.refusal;
    return this.#refuse(head, refusal, sender, startedMs, null);
  }

  async flush(sender: Sender): Promise<Receipt> {
    const startedMs = this.#options.clock.monotonicMs();
    return this.#take({ ...PLAIN, type: "Flush" }, [], sender, startedMs, {});
  }

  find(id: string, issuer: string | null, account?: string): Receipt | null {
    if (issuer !== null) {
      for (const scope of [scopeOf({ account }, issuer), issuer]) {
        const own = this.#running.get(scope, id)?.now() ?? this.#memory.get(scope, id);
        if (own !== null) return own;
      }
    }
    const latest = this.#running.find(id)?.now() ?? this.#memory.find(id);
    return issuer === null || latest?.issuer === issuer ? latest : null;
  }

  note(operation: Operation, sender: Sender): void {
    this.#recorder.operation(operation, sender);
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
    command: Command,
    unnamed: readonly UnnamedBlock[],
    sender: Sender,
    startedMs: number,
    { onProgress = () => undefined }: SubmitOptions,
  ): Receipt | Promise<Receipt> {
    const head = this.#headOf(command, sender);
    const scope = scopeOf(sender, head.issuer);
    const passage: Passage = {
      ...{ command, unnamed, head, sender, scope, startedMs, onProgress },
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
      this.#fences.check(scope, epoch, seq) ?? this.#running.refusal(scope, blocksOf(command));
    if (outOfTurn !== null) return refuse(outOfTurn);
    return this.#start(passage, this.#fences.advance(scope, epoch, seq));
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
    const digest = running?.digest ?? this.#memory.digest(scope, command.id);
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
    const receipt = this.#memory.get(scope, command.id);
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
      if (passage.isNoted) return this.#remember(passage, failed);
      takeBack();
      return failed;
    }
    const isExpected = report === passage.expected;
    const elapsedMs = this.#elapsed(startedMs);
    let receipt =
      isExpected && passage.written !== null
        ? { ...passage.written, elapsed_ms: elapsedMs }
        : finalReceipt(head, command, unnamed, report, elapsedMs);
    if (!isExpected) receipt = await this.#remember(passage, receipt);
    else this.#keep(passage, receipt);
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
      signal: this.#stop.signal,
      remember: (results, expected) => {
        if (isCounted(command)) {
          passage.isNoted = true;
          passage.expected = expected ?? null;
          const elapsedMs = this.#elapsed(startedMs);
          this.#note(passage, () => {
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

  /** The receipt to answer with: it is not durable where the ledger did not take it in time. */
  async #remember(passage: Passage, receipt: Receipt): Promise<Receipt> {
    const { ledger, clock } = this.#options;
    let told = receipt;
    if (this.#note(passage, () => receipt)) {
      const committed = ledger!.commit({ durable: false });
      const isWritten = (await within(clock, COMMIT_MS, committed)) === true;
      if (!isWritten && receipt.durable) told = { ...receipt, durable: false };
    }
    this.#keep(passage, told);
    return told;
  }

  #keep({ command, scope, digest }: Passage, receipt: Receipt): void {
    if (command.id !== null) this.#memory.put(scope, command.id, receipt, digest);
  }

  /** Puts into the ledger what a restart is to know of it; false where that is nothing. */
  #note({ command, scope, digest }: Passage, receipt: () => Receipt): boolean {
    const { ledger } = this.#options;
    if (ledger === null) return false;
    const { id, epoch, seq } = command;
    const isFenced = epoch !== null || seq !== null;
    if (isFenced && this.#written.check(scope, epoch, seq) === null) {
      this.#written.advance(scope, epoch, seq);
      ledger.putIssuer(this.#written.row(scope)!);
    }
    if (id !== null) {
      ledger.putCommand({ issuer: scope, id, receipt: receiptText(receipt(), digest) });
    }
    return isFenced || id !== null;
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
