import { type Clock, messageOf, runAtOnce, TokenBuckets } from "../core/index.ts";
import type { EventLog } from "../observability/activity/index.ts";
import type { Logger } from "../observability/index.ts";
import type { HoldLedger } from "../store/index/index.ts";
import type { Lifecycle, LifecycleReport } from "../store/index.ts";
import type { AuditLog } from "./audit-log.ts";
import { CarriedCommands } from "./carried-commands.ts";
import { carryOut, isCounted, placeOf } from "./carry-out.ts";
import { blocksOf, type Command, type Sender, type UnnamedBlock } from "./command.ts";
import { commandDigest } from "./command-digest.ts";
import type { ControlLimits, ControlPlane, ControlStats, SubmitOptions } from "./control-plane.ts";
import { type CommandHead, decodeCommand, NO_HEAD } from "./decode-command.ts";
import { Fences } from "./fences.ts";
import { type Gate, grantOf, refusalAtGate, refusalOfUnreadable } from "./gate.ts";
import { IssuerOrder } from "./issuer-order.ts";
import {
  finalReceipt,
  type ReceiptHead,
  refusedReceipt,
  runningReceipt,
  unfinishedReceipt,
} from "./make-receipt.ts";
import type { Operation } from "./operation.ts";
import { type BoundIssuer, proveIssuer } from "./prove-issuer.ts";
import type { Receipt } from "./receipt.ts";
import { Recorder } from "./recorder.ts";
import type { Refusal } from "./refusals.ts";
import { type Running, RunningCommands } from "./running.ts";
import { issuerAccount, scopeOf } from "./scope.ts";
import { SignedIds } from "./signed-ids.ts";
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
