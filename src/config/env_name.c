// See env_name.h.
#include "config/env_name.h"

#include <ctype.h>
#include <stddef.h>
#include <string.h>

// clang-format off
static const char *const games[] = { // ale-py 0.12: those for one player
    "Adventure", "AirRaid", "Alien", "Amidar", "Assault", "Asterix", "Asteroids", "Atlantis", "Atlantis2",
    "Backgammon", "BankHeist", "BasicMath", "BattleZone", "BeamRider", "Berzerk", "Blackjack", "Bowling", "Boxing",
    "Breakout", "Carnival", "Casino", "Centipede", "ChopperCommand", "CrazyClimber", "Crossbow", "Darkchambers",
    "Defender", "DemonAttack", "DonkeyKong", "DoubleDunk", "Earthworld", "ElevatorAction", "Enduro", "Entombed",
    "Et", "FishingDerby", "FlagCapture", "Freeway", "Frogger", "Frostbite", "Galaxian", "Gopher", "Gravitar",
    "Hangman", "HauntedHouse", "Hero", "HumanCannonball", "IceHockey", "Jamesbond", "JourneyEscape", "Kaboom",
    "Kangaroo", "KeystoneKapers", "KingKong", "Klax", "Koolaid", "Krull", "KungFuMaster", "LaserGates",
    "LostLuggage", "MarioBros", "MiniatureGolf", "MontezumaRevenge", "MrDo", "MsPacman", "NameThisGame", "Othello",
    "Pacman", "Phoenix", "Pitfall", "Pitfall2", "Pong", "Pooyan", "PrivateEye", "Qbert", "Riverraid", "RoadRunner",
    "Robotank", "Seaquest", "SirLancelot", "Skiing", "Solaris", "SpaceInvaders", "SpaceWar", "StarGunner",
    "Superman", "Surround", "Tennis", "Tetris", "TicTacToe3d", "TimePilot", "Trondead", "Turmoil", "Tutankham",
    "UpNDown", "Venture", "VideoCheckers", "VideoChess", "VideoCube", "VideoPinball", "WizardOfWor", "WordZapper",
    "YarsRevenge", "Zaxxon",
};
// clang-format on

bool farm_env_name_alike(const char *name, const char *title) {
    for (; *name || *title; name++) {
        if (*name == '_') continue;
        if (tolower((unsigned char)*name) != tolower((unsigned char)*title)) return false;
        title++;
    }
    return true;
}

void farm_env_name_settle(char *name) {
    static const char ale[] = "ale/", gymnasium[] = "gym/gymnasium:";
    if (strncmp(name, gymnasium, strlen(gymnasium)) == 0)
        memmove(strchr(name, '/') + 1, name + strlen(gymnasium), strlen(name + strlen(gymnasium)) + 1);
    if (strncmp(name, ale, strlen(ale)) != 0) return;
    for (size_t i = 0; i < sizeof games / sizeof *games; i++)
        if (farm_env_name_alike(name + strlen(ale), games[i]))
            memcpy(name + strlen(ale), games[i], strlen(games[i]) + 1);
}
