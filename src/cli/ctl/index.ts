import type { ExitName } from "../exit-codes.ts";

export { type Answer, Asking, readPages } from "./ask.ts";
export { BLOCKS_HELP, blockName, blockNameOrInput, readBlocks } from "./block-names.ts";
export { openNats } from "./connect.ts";
export { discover } from "./discover.ts";
export {
  bytesOf,
  holdersOf,
  listOf,
  type Members,
  membersOf,
  nameOf,
  secondsOf,
  textOf,
} from "./documents.ts";
export {
  API_URL,
  commandFlags,
  connectionFlags,
  natsFlags,
  ownedFlags,
  ownerOf,
  readFlags,
  routerFlags,
  seconds,
} from "./flags.ts";
export { holdFlags, printHolds } from "./holds-report.ts";
export { plain } from "./plain.ts";
export { readCommand } from "./read-command.ts";
export { sendCommand } from "./send-command.ts";

/** How a command to an agent can end, beside the ways of all commands. */
export const CTL_EXITS: readonly ExitName[] = ["partly", "refused", "noAnswer", "interrupted"];

/** And a question to one. */
export const READ_EXITS: readonly ExitName[] = ["refused", "noAnswer", "interrupted"];
