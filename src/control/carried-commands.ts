import type { Clock } from "../core/index.ts";
import type { HoldLedger } from "../store/index/index.ts";
import type { Command } from "./command.ts";
import { CommandMemory, receiptText } from "./command-memory.ts";
import { Fences } from "./fences.ts";
import type { Receipt } from "./receipt.ts";
import { isProven } from "./scope.ts";
import { within } from "./within.ts";

/** What is remembered of a command. */
export interface CarriedCommand {
  readonly command: Command;
  /** Of its id, epoch and number. */
  readonly scope: string;
  /** Of what it asks for; null if it has no id. */
  readonly digest: string | null;
}

/** How long an answer waits for the ledger. */
const COMMIT_MS = 5_000;

/** What was carried out: in memory, and in the ledger for the next process. */
export class CarriedCommands {
  readonly memory: CommandMemory;
  readonly #ledger: HoldLedger | null;
  readonly #clock: Clock;
  /** As far as the ledger has it: only by commands of which something came. */
  readonly #written: Fences;

  constructor(ledger: HoldLedger | null, clock: Clock) {
    this.#ledger = ledger;
    this.#clock = clock;
    this.memory = new CommandMemory(ledger?.contents.commands ?? []);
    this.#written = new Fences(ledger?.contents.issuers ?? []);
  }

  /** The receipt to answer with: it is not durable if the ledger did not take it in time. */
  async remember(carried: CarriedCommand, receipt: Receipt): Promise<Receipt> {
    let told = receipt;
    if (this.note(carried, () => receipt)) {
      const committed = this.#ledger!.commit({ durable: false });
      const isWritten = (await within(this.#clock, COMMIT_MS, committed)) === true;
      if (!isWritten && receipt.durable) told = { ...receipt, durable: false };
    }
    this.keep(carried, told);
    return told;
  }

  keep({ command, scope, digest }: CarriedCommand, receipt: Receipt): void {
    if (command.id !== null) this.memory.put(scope, command.id, receipt, digest);
  }

  /** Puts into the ledger what a restart is to know of it; false if that is nothing. */
  note({ command, scope, digest }: CarriedCommand, receipt: () => Receipt): boolean {
    const ledger = this.#ledger;
    if (ledger === null) return false;
    const { id, epoch, seq } = command;
    const rows = this.#written.rowsAfter(scope, epoch, seq);
    for (const row of rows) ledger.putIssuer(row);
    if (id !== null) {
      ledger.putCommand({ issuer: scope, id, receipt: receiptText(receipt(), digest) });
    }
    return isProven(scope) || epoch !== null || seq !== null || id !== null;
  }

  /** Forgets how far an issuer has come. */
  unfence(issuer: string): void {
    for (const scope of this.#written.forget(issuer)) this.#ledger?.removeIssuer(scope);
    void this.#ledger?.commit();
  }
}
