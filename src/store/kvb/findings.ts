/** How a repair deals with a finding; `next_start`: the agent does, when it starts. */
export type Remedy = "quarantine" | "remove" | "drop_row" | "next_start" | "none";

interface Kind {
  readonly meaning: string;
  readonly remedy: Remedy;
  /** False: worth a line, and no reason to call the folder damaged. */
  readonly isProblem: boolean;
}

const damaged = (meaning: string): Kind => ({ meaning, remedy: "quarantine", isProblem: true });

/** What a check of an SSD folder can find; `docs/on-disk-format.md` shows the same table. */
export const FINDING_KINDS = {
  header: damaged("the header is damaged, or of an unknown version"),
  size: damaged("the file is longer or shorter than its header says"),
  payload: damaged("the payload is not what its checksum says"),
  padding: damaged("bytes behind the payload are not zero"),
  unreadable: damaged("the system cannot read the file"),
  misplaced: damaged("the block of this file belongs under another name"),
  duplicate: damaged("another file holds the same block"),
  row_differs: damaged("the index has the block with another length, checksum or namespace"),
  leftover: {
    meaning: "a file that was being written when its writer died",
    remedy: "remove",
    isProblem: true,
  },
  no_row: {
    meaning: "the index does not know the block: the next start keeps or removes it",
    remedy: "next_start",
    isProblem: true,
  },
  no_file: {
    meaning: "the index knows a block whose file is not there",
    remedy: "drop_row",
    isProblem: true,
  },
  row_of_damaged: {
    meaning: "the index knows a block whose file is damaged",
    remedy: "drop_row",
    isProblem: false,
  },
  index: {
    meaning: "the index cannot be read: the next start makes a new one from the headers",
    remedy: "next_start",
    isProblem: true,
  },
  owner: { meaning: "owner.json is damaged", remedy: "none", isProblem: true },
  no_owner: {
    meaning: "there is no owner.json: the next start takes the folder for its own",
    remedy: "next_start",
    isProblem: false,
  },
  foreign: { meaning: "not of Hearth, left alone", remedy: "none", isProblem: false },
} as const satisfies Record<string, Kind>;

export type FindingKind = keyof typeof FINDING_KINDS;

export interface Finding {
  readonly kind: FindingKind;
  /** Below the SSD folder. */
  readonly path: string;
  /** What is wrong, so that "PATH: WHY" reads well. */
  readonly why: string;
  /** Of the index, where a row is to blame or goes with the file. */
  readonly rowId: number | null;
}
