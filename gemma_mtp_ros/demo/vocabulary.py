# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Words that the embedded pair knows: places, objects, people and things to operate.

A name outside these lists is copied from the instruction as well as the pair can.
"""

from __future__ import annotations

# Said with "the".
PLACES = (
    "kitchen", "living room", "bedroom", "bathroom", "hallway", "office", "garage", "garden",
    "pantry", "laundry room", "dining room", "guest room", "nursery", "library", "lobby",
    "reception", "workshop", "warehouse", "loading bay", "packing station", "storage room",
    "charging area", "cold store", "meeting room", "server room", "break room", "canteen",
    "laboratory", "clinic", "pharmacy", "basement", "attic", "balcony", "terrace", "entrance",
    "corridor", "elevator", "parking lot", "greenhouse", "gym", "mail room", "paint shop",
    "assembly line", "test bench", "quality desk", "fridge", "front door", "front desk", "table",
    "desk", "shelf", "window", "main hall", "control room", "yard", "supermarket", "lab", "store",
    "bar", "door", "workbench", "cellar", "study", "shower", "staircase", "exit", "street",
)  # fmt: skip

# With a number or a letter and a number said without "the" ("room 12", "rack B7"), alone with it.
NUMBERED_PLACES = (
    "room", "bay", "aisle", "station", "gate", "ward", "hall", "zone", "rack", "line", "lane",
    "shelf", "waypoint", "floor", "cell", "table", "office", "building", "corridor", "section",
)  # fmt: skip

PEOPLE = (
    "Anna", "Ben", "Carla", "David", "Elena", "Felix", "Grace", "Hugo", "Ines", "Jack", "Kim",
    "Lena", "Marco", "Nina", "Omar", "Paula", "Rosa", "Sam", "Tara", "Uwe", "Vera", "Walter",
    "Yuki", "Zoe", "Aisha", "Chen", "Diego", "Emma", "Fatima", "Ivan", "Julia", "Karim", "Liam",
    "Maria", "Noah", "Olga", "Pedro", "Raj", "Sofia", "Tom",
)  # fmt: skip

# Said with "the".
ROLES = (
    "nurse", "doctor", "guest", "manager", "technician", "operator", "visitor", "driver", "chef",
    "gardener", "teacher", "patient", "boss", "customer", "receptionist", "worker", "neighbour",
    "security guard", "cook", "engineer",
)  # fmt: skip

OBJECTS = (
    "cup", "mug", "plate", "bowl", "bottle", "glass", "spoon", "book", "magazine", "newspaper",
    "pen", "notebook", "laptop", "phone", "charger", "tablet", "camera", "umbrella", "jacket",
    "towel", "blanket", "pillow", "hat", "key card", "remote control", "toy car", "ball",
    "teddy bear", "apple", "banana", "sandwich", "medicine box", "first aid kit", "toolbox",
    "hammer", "screwdriver", "wrench", "drill", "flashlight", "battery", "cable", "extension cord",
    "box", "parcel", "envelope", "folder", "package", "gearbox", "motor", "sensor", "valve",
    "bearing", "filter", "helmet", "glove", "safety vest", "paint can", "bucket", "broom", "mop",
    "vacuum cleaner", "water jug", "coffee pot", "lunch box", "letter", "first-aid kit",
    "cup of coffee", "cup of tea", "glass of water", "bottle of water", "bag of screws",
    "box of nails", "beer", "coffee", "tea", "juice", "milk", "manual", "screw", "bolt", "nut",
    "tool", "tape measure", "pallet jack", "wallet", "backpack", "suitcase", "sponge", "monitor",
    "keyboard", "cartridge", "shoe", "shirt", "coat", "bag", "soda", "cookie", "part", "spare part",
    "sample", "document", "map", "trash bag", "walking stick", "pill bottle", "rope", "ladder",
    "chain", "pipe", "wheel",
)  # fmt: skip

# Never with a number: "the keys" (several) and "some water" (a mass).
SEVERAL = (
    "keys", "car keys", "glasses", "scissors", "shoes", "groceries", "flowers", "pills", "tools",
    "boxes", "documents", "papers", "dishes", "plates", "cups", "headphones", "slippers",
)  # fmt: skip
MASSES = (
    "water", "coffee", "tea", "juice", "milk", "food", "bread", "medicine", "paper", "mail",
    "laundry", "trash", "sugar", "salt", "fruit", "soup",
)  # fmt: skip

ADJECTIVES = (
    "red", "blue", "green", "yellow", "black", "white", "grey", "orange", "purple", "brown",
    "small", "large", "heavy", "empty", "broken", "new", "old", "wooden", "metal", "plastic",
    "spare", "clean", "dirty",
)  # fmt: skip

# Where a thing can be put: (preposition, noun).
SPOTS = (
    ("on", "table"), ("on", "shelf"), ("on", "desk"), ("on", "counter"), ("on", "workbench"),
    ("on", "cart"), ("on", "pallet"), ("on", "conveyor"), ("on", "chair"), ("on", "sofa"),
    ("on", "tray"), ("on", "nightstand"), ("on", "scale"), ("on", "floor"), ("on", "bed"),
    ("in", "bin"), ("in", "drawer"), ("in", "basket"), ("in", "crate"), ("in", "bag"),
    ("in", "cupboard"), ("in", "dishwasher"), ("in", "fridge"), ("in", "sink"), ("in", "locker"),
)  # fmt: skip

OPENABLE = (
    "door", "window", "main gate", "fridge", "cupboard", "drawer", "cabinet", "shutter", "oven",
    "dishwasher", "locker", "hatch", "curtain", "garage door", "fire door",
)  # fmt: skip

DEVICES = (
    "light", "lamp", "fan", "heater", "radio", "television", "coffee machine", "kettle",
    "air conditioner", "printer", "projector", "conveyor", "water pump", "compressor", "humidifier",
    "lights", "lamps", "ceiling light", "tv", "pump", "machine", "motor", "music",
    "washing machine", "vacuum cleaner", "computer", "alarm",
)  # fmt: skip

INSPECTABLE = (
    "fire extinguisher", "smoke detector", "water meter", "pressure gauge", "emergency exit",
    "thermostat", "power cabinet", "battery rack", "cable tray", "boiler", "gas valve",
    "control panel", "floor", "ceiling", "plants", "stove", "pump", "motor", "machine", "engine",
    "pipe", "tank", "valve", "cable", "roof",
)  # fmt: skip

STATES = (
    "open", "closed", "locked", "broken", "ready", "on", "off", "empty", "full", "clean", "done",
)  # fmt: skip

NUMBER_WORDS = (
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
)  # fmt: skip

# Nothing that a robot can do; "{}" takes a place, a person or an object.
OFF_TOPIC = (
    "What is the weather like today?", "Tell me a joke.", "Who won the game last night?",
    "How are you?", "What is your name?", "Sing me a song.", "What time is it?",
    "What do you think about {}?", "Why is the sky blue?", "Write a poem about {}.",
    "How old is {}?", "What is the capital of France?", "Do you like {}?", "Hello!", "Hi there.",
    "Thank you.", "Good morning.", "What does {} cost?", "Explain {} to me.",
    "Can you help me with my homework?", "What is 12 times 7?", "Translate {} into German.",
    "Who is {}?", "Tell me a story about {}.", "What can you do?", "Are you a human?",
    "I am bored.", "I like {}.", "Is it going to rain tomorrow?", "Play some music.",
    "Recommend a good film.", "What is the meaning of life?", "Order a pizza.",
    "How far away is the moon?", "Draw {} for me.", "Say something nice.", "Where is {}?",
    "Is {} open?", "What is in {}?", "Have you seen {}?", "Why is {} so slow?", "Stop!", "Help!",
    "Stop", "stop", "Stop it.", "Stop now!", "Halt!", "Help", "help me", "Help me!", "Cancel.",
    "Abort!", "Wait.", "Wait here.", "wait", "Hi", "Hello", "hello robot", "Hi robot!", "Hey!",
    "hello, how are you?", "Thanks!", "Good evening.", "Good night.", "test", "yes", "No.", "ok",
    "Who are you?", "What are you doing?", "What is this?", "Show me {}.", "Guide me to {}.",
    "Take me to {}.", "Lead the way to {}.", "Wait for {}.", "Say hello to {}.", "Dance!", "Sing!",
    "Jump.", "Why?", "What is the time?", "Be quiet.", "Be careful with {}.", "That is {}.",
    "Please stop.", "stop moving", "How do I get to {}?", "When will {} be ready?", "Turn around.",
    "turn left", "Turn right.", "Drive forward.", "go faster", "Slow down.", "move back",
    "Stay here.", "Sit down.", "Look at me.", "Do something.", "I love you.", "Are you ready?",
    "Where are you?", "How many steps are there?", "Where did you put {}?",
)  # fmt: skip

# Errands of a kind that the robot has no action for.
UNKNOWN_VERBS = (
    "clean", "patrol", "water", "paint", "cook", "repair", "wash", "build", "sell", "buy", "cut",
    "take a picture of", "vacuum", "polish", "measure", "read", "call", "guard", "weigh", "fold",
    "eat", "break", "dance with", "sing for", "lift", "sort", "feed", "kill", "film", "scan",
    "find", "search for", "look for", "mop", "sweep", "tidy up", "map", "explore", "push", "kick",
    "throw", "charge", "set", "iron", "drink", "hide", "photograph", "assemble", "count", "play",
    "heat", "dust", "water the plants in", "draw", "ask", "hug", "help", "watch", "save", "print",
    "wipe",
)  # fmt: skip

SYSTEM_PROMPTS = (
    "You are a helpful robot.", "You are a household robot.", "You are a warehouse robot.",
    "Answer with a plan.", "Answer with one sentence and a JSON plan.", "Be brief.",
    "You control a mobile robot with one arm.", "Your name is {}.", "You work for {}.",
    "You are in the {}.", "Reply in JSON.", "The operator is {}.", "Be polite and careful.",
    "You are the planner of a mobile manipulator.", "Keep people safe.", "Do not talk too much.",
    "You plan tasks for a robot that can navigate, pick, place and inspect.",
    "Only use actions that the robot knows.",
)  # fmt: skip
