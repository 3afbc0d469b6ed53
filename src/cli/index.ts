export { CATALOGUE, type Entry } from "./catalogue.ts";
export * from "./command.ts";
export {
  type Command,
  type CommandContext,
  defineCommand,
  EXIT_CODES,
  EXIT_OF_ERROR,
  type Example,
  type ExitName,
} from "./command.ts";
export { type ParsedWords, parseWords, type Takes } from "./parse.ts";
export { runCli } from "./run.ts";
export {
  createProgress,
  type Io,
  type Progress,
  printJson,
  printRecord,
  printRows,
  processIo,
  type Row,
  type Sink,
} from "./terminal.ts";
