import type {
  CommandRow,
  LedgerContents,
  PartRow,
  RetentionLedger,
  RetentionRow,
} from "../../../src/store/index/index.ts";

/** The disk of a ledger that keeps its rows in memory: a restart finds the committed rows. */
export class MemoryDisk {
  readonly holds = new Map<number, RetentionRow>();
  readonly parts = new Map<string, PartRow>();
  lastSeen: LedgerContents["lastSeen"] = null;

  /** The run that may write; an earlier one is dead, whatever its timers still do. */
  run = 0;

  /** As after a crash: whatever was not committed is gone. */
  open(): MemoryLedger {
    this.run++;
    return new MemoryLedger(this);
  }
}

/** The port, literally: changes wait until a commit, then all of them are on the disk. */
export class MemoryLedger implements RetentionLedger {
  readonly contents: LedgerContents;
  readonly state = { failing: null, pending: 0, dropped: 0, setAside: null };
  readonly commands: CommandRow[] = [];
  readonly #disk: MemoryDisk;
  readonly #late: (() => void)[] = [];
  readonly #changes: (() => void)[] = [];
  #seen: LedgerContents["lastSeen"];
  readonly #run: number;
  readonly mark = 1;
  commits = 0;
  /** Number of blocks in rows. */
  bytesPut = 0;

  constructor(disk: MemoryDisk) {
    this.#disk = disk;
    this.#run = disk.run;
    this.#seen = disk.lastSeen;
    const holds = [...disk.holds.values()].map((row) => ({ ...row, blocks: row.blocks.slice() }));
    const copied = [...disk.parts.values()].map((row) => ({ ...row, blocks: row.blocks.slice() }));
    const parts = copied.sort((a, b) => a.hold - b.hold || a.part - b.part);
    this.contents = { holds, parts, commands: [], issuers: [], lastSeen: disk.lastSeen };
  }

  putHold(row: RetentionRow): void {
    this.bytesPut += row.blocks.length;
    const copy = { ...row, blocks: row.blocks.slice() };
    this.#changes.push(() => this.#disk.holds.set(row.id, copy));
  }

  putPart(row: PartRow): void {
    this.bytesPut += row.blocks.length;
    const copy = { ...row, blocks: row.blocks.slice() };
    const key = `${row.hold} ${row.part}`;
    this.#changes.push(() => {
      if (copy.blocks.length > 0) this.#disk.parts.set(key, copy);
      else this.#disk.parts.delete(key);
    });
  }

  removeHold(id: number): void {
    this.#changes.push(() => {
      this.#disk.holds.delete(id);
      for (const [key, { hold }] of this.#disk.parts) if (hold === id) this.#disk.parts.delete(key);
    });
  }

  beforeTurnEnds(write: () => void): void {
    this.#late.push(write);
  }

  putCommand(row: CommandRow): void {
    this.commands.push(row);
  }

  putIssuer(): void {}
  removeIssuer(): void {}

  seen(bootId: string, bootMs: number): void {
    this.#seen = { bootId, bootMs };
  }

  async commit(): Promise<boolean> {
    if (this.#run !== this.#disk.run) return false;
    this.commits++;
    this.#disk.lastSeen = this.#seen;
    for (const write of this.#late.splice(0)) write();
    for (const change of this.#changes.splice(0)) change();
    return true;
  }

  close(): Promise<boolean> {
    return this.commit();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.commit();
  }
}
