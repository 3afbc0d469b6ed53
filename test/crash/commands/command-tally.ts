/** Figures of a run with commands. */
export interface CommandFigures {
  /** Answered with a receipt that was not a repetition's, by what they were. */
  readonly acknowledged: Readonly<Record<string, number>>;
  readonly commands: number;
  /** No answer came: the agent was killed. */
  readonly unanswered: number;
  /** Of those: had been carried out, as the next run of the agent knew. */
  readonly carried_out: number;
  /** Sent again under their id after the kill. */
  readonly retried: number;
  /** Of all that was sent twice: answered as a repetition. */
  readonly duplicates: number;
  readonly double_effects: number;
  readonly rejected: Readonly<Record<string, number>>;
  readonly audits: number;
  /** Holds that were seen to end by themselves. */
  readonly expiries: number;
  readonly expired_early_ms_max: number;
  readonly expired_late_ms_max: number;
  /** How far what the agent said was left lay from what was left. */
  readonly remaining_off_ms_max: number;
  readonly purged_at_expiry: number;
  readonly wall_jumps: number;
  readonly floods: number;
  readonly relieved_soft: number;
}

/** Counts what commands came to. */
export class CommandTally {
  readonly acknowledged: Record<string, number> = {};
  readonly rejected: Record<string, number> = {};
  unanswered = 0;
  carriedOut = 0;
  retried = 0;
  duplicates = 0;
  doubleEffects = 0;
  audits = 0;
  expiries = 0;
  earlyMs = 0;
  lateMs = 0;
  remainingOffMs = 0;
  purgedAtExpiry = 0;
  floods = 0;
  relievedSoft = 0;

  acknowledge(what: string): void {
    this.acknowledged[what] = (this.acknowledged[what] ?? 0) + 1;
  }

  reject(reason: string): void {
    const word = /^\w+/.exec(reason)?.[0] ?? "";
    this.rejected[word] = (this.rejected[word] ?? 0) + 1;
  }

  get figures(): Omit<CommandFigures, "wall_jumps"> {
    const whole = (ms: number) => Math.round(ms);
    return {
      acknowledged: this.acknowledged,
      commands: Object.values(this.acknowledged).reduce((sum, count) => sum + count, 0),
      unanswered: this.unanswered,
      carried_out: this.carriedOut,
      retried: this.retried,
      duplicates: this.duplicates,
      double_effects: this.doubleEffects,
      rejected: this.rejected,
      audits: this.audits,
      expiries: this.expiries,
      expired_early_ms_max: whole(this.earlyMs),
      expired_late_ms_max: whole(this.lateMs),
      remaining_off_ms_max: whole(this.remainingOffMs),
      purged_at_expiry: this.purgedAtExpiry,
      floods: this.floods,
      relieved_soft: this.relievedSoft,
    };
  }
}
