import { HearthError } from "../core/index.ts";
import { STATUS } from "./abi.gen.ts";

export type StatusName = keyof typeof STATUS;

const NAMES = new Map<number, StatusName>(
  (Object.entries(STATUS) as [StatusName, number][]).map(([name, value]) => [value, name]),
);

/** The name of a negative return value. */
export function statusName(code: number): StatusName {
  return NAMES.get(code) ?? "system";
}

/** A native call that should not have failed did; `status` and `errno` say how. */
export class NativeError extends HearthError {
  readonly status: StatusName;
  readonly errno: number;

  constructor(call: string, code: number, errno: number) {
    const status = statusName(code);
    const detail = errno === 0 ? "" : ` (errno ${errno})`;
    super("NATIVE_FAILED", `${call}: ${status.replaceAll("_", " ")}${detail}`);
    this.status = status;
    this.errno = errno;
  }
}
