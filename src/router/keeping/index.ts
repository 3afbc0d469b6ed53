export {
  type KeeperOptions,
  type KeeperStats,
  PictureKeeper,
  type RestoreOutcome,
} from "./picture-keeper.ts";
