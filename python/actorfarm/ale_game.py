"""One Atari game with DeepMind's settings around ALE's emulator.

Steps (skipped frames, maximum of the last two, no-op starts, ends) equal those of ALE's vector environment;
tests/python/test_ale_vector_env.py compares them byte for byte. One addition: after a lost life (`episodic_life`) the same game
continues. Frames are palette indices; `_farm.Ring.commit` converts them to 84x84 grey pixels.

Options with DeepMind's settings as defaults. V and G: ALE's vector environment and Gymnasium's ALE/*-v5 have the option, with
another name or default if one is given:

    frame_skip=4                    V, G: frameskip. Frames of an agent step
    noop_max=30                     V. A game starts with 0 to noop_max - 1 no-ops
    fire_reset=true                 V: use_fire_reset. A game with the action FIRE starts with it
    episodic_life=true              V. A lost life ends a training episode, not the game (V: begins a new game)
    max_frames=108000               V, G: max_num_frames_per_episode
    full_action_space=false         V, G. All 18 actions instead of the game's
    repeat_action_probability=0     V, G (0.25 there). Sticky actions (Machado et al. 2018)
    mode=, difficulty=              G. Of the console, if the game has it
    maxpool=true                    V. The brighter of the last two frames; false: the last frame. For obs=grey
    obs=grey                        u8 84x84, as V with img_height = img_width = 84; the only size
       =raw                         u8 210x160 (some games 214 to 250 rows), grey. G: obs_type="grayscale"
       =rgb                         u8 210x160x3. G: obs_type="rgb"
       =ram                         f32[128]: the console's memory / 255. G: obs_type="ram" in u8
"""

import ctypes
import dataclasses
import difflib
import re
import sys

import numpy as np

from . import _farm

ctypes.CDLL(_farm.__file__, ctypes.RTLD_GLOBAL)  # before ALE: a game then loads ten times faster (_farm/atari.c)
if "gymnasium" in sys.modules:
    import ale_py
else:  # ale_py would register its games in Gymnasium, which takes a third of a second
    sys.modules["gymnasium"] = None
    import ale_py

    del sys.modules["gymnasium"]
import ale_py.roms

TERMINATED, TRUNCATED, GAME_END = _farm.TERMINATED, _farm.TRUNCATED, _farm.GAME_END
GAME_OVER = TERMINATED | GAME_END
NOOP, FIRE = 0, 1  # ALE's action numbers
TWO_PLAYERS_ONLY = {"combat", "joust", "maze_craze", "warlords"}  # the emulator refuses one player


OBS = ("grey", "raw", "rgb", "ram")

# Names in other libraries, if too different for a guess.
OTHER_NAMES = {
    "frameskip": "frame_skip",
    "use_fire_reset": "fire_reset",
    "max_num_frames_per_episode": "max_frames",
    "max_episode_steps": "max_frames",
    "obs_type": "obs",
    "grayscale": "obs",
    "sticky_actions": "repeat_action_probability",
}


@dataclasses.dataclass
class Options:
    """The options --option key=value. `episodic_life` is for training: a lost life ends the episode, not the game."""

    frame_skip: int = 4
    noop_max: int = 30
    fire_reset: bool = True
    episodic_life: bool = True
    full_action_space: bool = False
    repeat_action_probability: float = 0.0
    max_frames: int = 108000  # of a game
    mode: int = -1  # -1: the game's default
    difficulty: int = -1
    maxpool: bool = True
    obs: str = "grey"

    @classmethod
    def numbers(cls):
        """The options that may change from game to game: they leave the lane as it is."""
        return [field.name for field in dataclasses.fields(cls) if field.name not in ("frame_skip", "full_action_space", "obs")]

    def change(self, numbers):
        """A copy with {name: number, ...}. ValueError."""
        pairs = (f"{key}={int(number) if number.is_integer() else number}" for key, number in numbers.items())
        return self.parse(pairs, dataclasses.replace(self))

    @classmethod
    def parse(cls, pairs, options=None):
        """From ["key=value", ...], over `options`. ValueError with a message for the user."""
        options = options or cls()
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for pair in pairs:
            key, _, text = pair.partition("=")
            if key not in fields:
                near = [OTHER_NAMES[key]] if key in OTHER_NAMES else difflib.get_close_matches(key, fields, 1)
                hint = f'did you mean "{near[0]}"?' if near else f"they have {', '.join(fields)}"
                raise ValueError(f'ALE environments have no option "{key}"; {hint}')
            setattr(options, key, _parse(key, text, fields[key].type))
        if options.frame_skip < 1 or options.noop_max < 0 or options.max_frames < 1:
            raise ValueError("frame_skip and max_frames are at least 1, noop_max at least 0")
        if not 0 <= options.repeat_action_probability < 1:
            raise ValueError("repeat_action_probability is at least 0 and below 1")
        if options.obs not in OBS:
            raise ValueError(f'option "obs" is one of {", ".join(OBS)}, not "{options.obs}"')
        return options


def _parse(key, text, kind):
    if kind is bool:
        words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
        if text.lower() not in words:
            raise ValueError(f'option "{key}" is true or false, not "{text}"')
        return words[text.lower()]
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f'option "{key}" is {"a whole number" if kind is int else "a number"}, not "{text}"') from None


def games():
    """{"MsPacman": "ms_pacman", ...}: the package's games for one player."""
    roms = sorted(set(ale_py.roms.get_all_rom_ids()) - TWO_PLAYERS_ONLY)
    return {"".join(part.capitalize() for part in rom.split("_")): rom for rom in roms}


def find_rom(name):
    """The ROM of "MsPacman", "ms_pacman" or "mspacman". LookupError with the nearest known name."""
    known = {rom.replace("_", ""): (title, rom) for title, rom in games().items()}
    wanted = name.replace("_", "").lower()
    if wanted in known:
        return known[wanted][1]
    near = difflib.get_close_matches(wanted, known, 1, 0.5)
    guess = f'did you mean "ale/{known[near[0]][0]}"?' if near else ""
    raise LookupError(f'no Atari game "{name}"' + (f"; {other_spelling(name) or guess}" if near or other_spelling(name) else ""))


def other_spelling(id):
    """What Gymnasium's or gym's id of a game is here, with the options of its rules: 'did you mean "ale/Pong"? ...'; or None."""
    known = {rom.replace("_", ""): title for title, rom in games().items()}
    parts = re.fullmatch(r"(?:\w+/)?(\w+?)(-ram)?(NoFrameskip|Deterministic)?(?:-v(\d+))?", id, re.IGNORECASE)
    title = known.get(parts[1].replace("_", "").lower()) if parts else None
    if not title:
        return None
    rules = {"obs ram": parts[2], "frame_skip 1": (parts[3] or "").lower() == "noframeskip",
             "repeat_action_probability 0.25": parts[4] in ("0", "5")}  # fmt: skip
    options = " ".join(f"--env.{option}" for option, has in rules.items() if has)
    return f'did you mean "ale/{title}"? It has DeepMind\'s wrappers built in' + (f'; without them {id} has {options}' if options else "")


class NoopCount:
    """Numbers of no-ops as ALE's vector environment draws them: std::mt19937 through libstdc++'s
    uniform_int_distribution (Lemire's method, ACM TOMACS 29/1, 2019), so that the same seed starts the same game."""

    def __init__(self, seed, noop_max):
        self._generator = np.random.RandomState(seed)  # init_genrand, as std::mt19937 seeds itself
        self._range = max(noop_max, 1)

    def draw(self):
        """Uniform in 0..max(noop_max, 1)-1."""
        threshold = (1 << 32) % self._range
        while True:
            product = int(self._generator.randint(0, 1 << 32, dtype=np.uint32)) * self._range
            if product & 0xFFFFFFFF >= threshold:
                return product >> 32


class FilmedEmulator(ale_py.ALEInterface):
    """An emulator whose screen after each frame, and at the start of a game, goes to the film (film.py)."""

    RATE_HZ = 60

    def __init__(self, film):
        super().__init__()
        self._film = film

    def reset_game(self):
        super().reset_game()
        self._film.picture(self.getScreenRGB(), self.RATE_HZ)

    def act(self, action):
        points = super().act(action)
        self._film.picture(self.getScreenRGB(), self.RATE_HZ)
        return points


class Game:
    """One emulator. After reset() and step(), `frame_a` and `frame_b` (or None) are the palette frames whose maximum is the
    observation. They are valid until the next call."""

    def __init__(self, rom, seed, options, film=None):
        self.options, self.seed = options, seed
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale = ale = FilmedEmulator(film) if film else ale_py.ALEInterface()
        ale.setFloat("repeat_action_probability", options.repeat_action_probability)
        ale.setInt("random_seed", seed)
        ale.loadROM(ale_py.roms.get_rom_path(rom))
        self._choose("mode", options.mode, ale.getAvailableModes, ale.setMode)
        self._choose("difficulty", options.difficulty, ale.getAvailableDifficulties, ale.setDifficulty)
        self._methods = ale.act, ale.game_over, ale.lives, ale.getScreen
        self.actions = list(ale.getLegalActionSet() if options.full_action_space else ale.getMinimalActionSet())
        self.height, self.width = ale.getScreenDims()
        self._noops = NoopCount(seed, options.noop_max)
        self._codes = [action.value for action in self.actions]
        self._fire = options.fire_reset and FIRE in self._codes
        self._last = self._frames()  # (newest, previous) frame of the current step; swapped with _shown
        self._shown = self._frames()
        self.continues = False  # the next reset continues the game, after a lost life
        self._lives = self._frames_played = 0
        self._reward_before = 0
        self.frame_a, self.frame_b = self._shown[0], None
        self._frames_read = (2 if options.maxpool and options.frame_skip > 1 else 1) if options.obs == "grey" else 0
        self.field, self._write = self._direct(options.obs)

    @staticmethod
    def _choose(what, value, available, choose):
        if value == -1:
            return
        if value not in available():
            raise ValueError(f"{what} is one of {', '.join(map(str, available()))} in this game, not {value}")
        choose(value)

    def _direct(self, obs):
        """The observation field, and the function that writes it from the emulator (None for grey: see frame_a)."""
        ale, screen = self._ale, (self.height, self.width)
        if obs == "raw":
            return ("frame", "u8", screen), ale.getScreenGrayscale
        if obs == "rgb":
            return ("frame", "u8", (*screen, 3)), ale.getScreenRGB
        if obs == "ram":
            ram = np.zeros(ale.getRAMSize(), np.uint8)

            def write(into):
                ale.getRAM(ram)
                np.multiply(ram, np.float32(1 / 255), out=into)

            return ("ram", "f32", ram.shape), write
        return ("frame", "u8", (84, 84)), None

    def write_observation(self, into):
        """From the emulator; not for grey."""
        self._write(into)

    def _frames(self):
        return tuple(np.zeros((self.height, self.width), np.uint8) for _ in range(2))

    def reset(self):
        """Starts an episode: a new game, or the same one after a lost life."""
        if self.continues:
            # One step of FIRE (which serves a new ball) or NOOP, like DeepMind's wrapper. Its points count in the next step. If
            # the game ends now, the next step finds it over.
            self.continues = False
            points, _ = self.step(self._codes.index(FIRE if self._fire else NOOP))
            self.continues = False
            self._reward_before = points
            return
        ale = self._ale
        ale.reset_game()
        noops = self._noops.draw()
        if self._fire:
            ale.act(FIRE)
            noops -= 1
        for _ in range(noops):
            ale.act(NOOP)
            if ale.game_over():
                ale.reset_game()
        ale.getScreen(self._shown[0])
        self.frame_a, self.frame_b = self._shown[0], None
        self._frames_played = self._reward_before = 0
        self._lives = ale.lives()

    def step(self, action):
        """Plays action number `action` of `actions`. Returns (reward, flags)."""
        options, looks, last = self.options, self._frames_read, self._last
        lives, left = self._lives if options.episodic_life else 0, options.max_frames - self._frames_played
        reward, skip, over, lives, left = _farm.skip(
            self._methods, self._codes[action], options.frame_skip, looks, last, lives, left
        )
        reward += self._reward_before
        self._reward_before = 0
        if skip >= 0:
            return reward, self._end(skip, over, lives, left)
        self.frame_a, self.frame_b = last[0], last[1] if looks > 1 else None
        self._last, self._shown = self._shown, last
        self._lives, self._frames_played = lives, options.max_frames - left
        return reward, 0

    def _end(self, skip, over, lives, left):
        """An end within a step, before the newest frame is read. The observation is the previous one; if only the newest frame is
        missing, it is the brighter of that and the frame before the newest."""
        if skip == 0 and self._frames_read > 1:
            if self.frame_b is not None:
                _farm.brighter(self.frame_a, self.frame_b)
            _farm.brighter(self.frame_a, self._last[1])
            self.frame_b = None
        lost_life = 0 < lives < self._lives
        self._lives, self._frames_played = lives, self.options.max_frames - left
        if over:
            return GAME_OVER
        if left <= 0:
            return TERMINATED | GAME_END if self.options.episodic_life and lost_life else TRUNCATED | GAME_END
        self.continues = True
        return TERMINATED
