"""Prints the grey tables of src/kernels/atari.c as observed in the emulator, and checks them.

Usage: python make_atari_grey.py [seconds]      (needs ale-py and numpy)

Runs every game that ale-py ships in a process of its own and writes random bytes into its RAM, so that colours appear
which the game itself never shows; each frame tells the palette index, the grey value and the RGB value of its pixels.
PAL games are those whose screen has 250 lines. An even index has a colour of its own. An odd index (index | 1 marks a
PAL frame with an odd number of lines) is answered by the emulator with the blue value of the next even index (0 after
the last); the script checks this wherever it sees one.
"""

import multiprocessing
import sys
import time

import ale_py
import ale_py.roms
import numpy as np

MULTIPLAYER_ONLY = {"combat", "joust", "maze_craze", "warlords"}


def observe(game, steps, seed, queue):
    """Puts (lines on the screen, {index: (grey, red, green, blue)}) each few steps; the emulator may end the process."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    rng = np.random.default_rng(seed)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", 1)
    ale.loadROM(ale_py.roms.get_rom_path(game))
    actions = ale.getMinimalActionSet()
    for step in range(steps):
        if step >= 20 and step % 3 == 0:
            for address in rng.integers(0, 128, 6):
                ale.setRAM(int(address), int(rng.integers(0, 256)))
        ale.act(actions[rng.integers(len(actions))])
        if ale.game_over():
            ale.reset_game()
        if step % 3 == 0:
            screen, grey, rgb = ale.getScreen(), ale.getScreenGrayscale(), ale.getScreenRGB().reshape(-1, 3)
            indices, first = np.unique(screen, return_index=True)
            colours = {int(i): (int(grey.flat[p]), *map(int, rgb[p])) for i, p in zip(indices, first)}
            queue.put((screen.shape[0], colours))


def missing(palette):
    return [i for i in range(0, 256, 2) if i not in palette]


def main():
    deadline = time.time() + float(sys.argv[1] if len(sys.argv) > 1 else 60)
    palettes = {"ntsc": {}, "pal": {}}
    games = sorted(set(ale_py.roms.get_all_rom_ids()) - MULTIPLAYER_ONLY)
    palette_of = {}
    with multiprocessing.Manager() as manager:
        for seed in range(1, 100):
            wanted = [g for g in games if missing(palettes.get(palette_of.get(g), {}))]
            for game in wanted:
                if time.time() > deadline:
                    break
                queue = manager.Queue()
                process = multiprocessing.Process(target=observe, args=(game, 150 * seed, seed, queue))
                process.start()
                process.join(10)
                process.kill()
                while not queue.empty():
                    lines, colours = queue.get()
                    palette_of[game] = "pal" if lines == 250 else "ntsc"
                    palette = palettes[palette_of[game]]
                    for index, colour in colours.items():
                        if palette.setdefault(index, colour) != colour:
                            sys.exit(f"{game}: index {index} is {colour} here and {palette[index]} elsewhere")
    for name, palette in palettes.items():
        if missing(palette):
            sys.exit(f"{name}: indices {missing(palette)} were never seen: give it more seconds")
        odd = {i: palette[i + 1][3] if i + 1 in palette else 0 for i in range(1, 256, 2)}
        wrong = [i for i in odd if i in palette and palette[i][0] != odd[i]]
        if wrong:
            sys.exit(f"{name}: odd indices {wrong} are not the blue value of the next colour")
        grey = [palette[i][0] if i % 2 == 0 else odd[i] for i in range(256)]
        print(f"// {sum(i in palette for i in odd)} of the 128 odd indices were seen too.")
        print(f"const uint8_t farm_atari_grey_{name}[256] = {{")
        for start in range(0, 256, 20):
            print("    " + " ".join(f"{v}," for v in grey[start : start + 20]))
        print("};")


if __name__ == "__main__":
    main()
