import { type ParseArgsOptionsConfig, parseArgs } from "node:util";

/**
 * The options of a script. `--help` prints `help` and exits 0; an option nobody knows prints the
 * reason and exits 2.
 */
export function scriptOptions<Config extends ParseArgsOptionsConfig>(
  help: string,
  options: Config,
) {
  const known = { ...options, help: { type: "boolean", short: "h" } } as const;
  try {
    const { values } = parseArgs({ args: process.argv.slice(2), options: known, strict: true });
    if ((values as { help?: boolean }).help) {
      console.log(help.trim());
      process.exit(0);
    }
    return values;
  } catch (thrown) {
    console.error(`${thrown instanceof Error ? thrown.message : thrown}\n\n${help.trim()}`);
    process.exit(2);
  }
}
