import { tmpdir } from "node:os";
import { messageOf } from "../../src/core/index.ts";
import { type Native, openDisk } from "../../src/native/index.ts";

/** Why this host has no io_uring for a disk; null where it has. */
export async function ringRefusal(native: Native): Promise<string | null> {
  try {
    await using disk = await openDisk(native, {
      folder: tmpdir(),
      arena: null,
      depth: 1,
      method: "io_uring",
    });
    return disk.method === "io_uring" ? null : disk.methodReason;
  } catch (error) {
    return messageOf(error);
  }
}
